"""The front door: command line, configuration, and the wiring of processes."""
