"""The controller on a log in memory, with batch coordinators that a test can break."""
