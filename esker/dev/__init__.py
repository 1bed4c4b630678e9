"""The embedded cluster of `esker dev`: three quorum nodes, brokers, and their objects."""
