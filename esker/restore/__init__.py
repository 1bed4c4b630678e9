"""Restores a cluster from the directories of voters and brokers that survived.

- `sources`: opens the directories and reads the copies of the logs in them;
- `plan`: chooses a copy of each log, says what is recovered and what is lost;
- `states`: makes the checkpoints of the new cluster: one cut, one jump of all counters;
- `objects`: compares the objects that the checkpoints name with the store;
- `directories`: writes the new nodes' directories.

Source: docs/design/restore.md.
"""
