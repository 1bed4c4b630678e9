"""The quorum's batch coordinator state in SQLite: one file per group and replica."""
