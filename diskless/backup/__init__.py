"""Copies the committed logs of the quorum to the object store, from which they can be restored.

- `manifest`: what one cut consists of, and its bytes;
- `bucket`: the manifests and data objects of one cluster in the store;
- `cut`: takes one consistent cut of all logs;
- `shipper`: the task of a broker that writes cuts, and notices a lost log;
- `expiry`: which cuts can still be restored, and what may be deleted of the others;
- `hold`: which marked objects deletion has to leave.

Source: docs/design/backup.md.
"""
