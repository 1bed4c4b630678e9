"""Translates the core's messages to Kafka's RPCs and back, without I/O.

- `requests`: Vote, BeginQuorumEpoch, EndQuorumEpoch and DescribeQuorum requests.
- `responses`: their answers, and where each kind of error belongs.
- `fetch`: Fetch, which carries the log.
- `snapshots`: FetchSnapshot, which carries checkpoints.
- `common`: group names, error codes and the sentinels that all of them share.
"""
