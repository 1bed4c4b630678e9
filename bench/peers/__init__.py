"""What a quorum is measured against: PySyncObj always, etcd where it is installed, the disk."""
