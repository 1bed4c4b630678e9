"""The controller on a log in memory, with coordinators that a test can break."""
