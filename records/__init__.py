"""Typed records and their bytes: what a metadata record is, and how Kafka writes it.

A tour, from a declaration to the bytes of a file:

- `kafka_errors`: Kafka's error codes, the one table that every room imports.
- `types`, `uuids`, `errors`: the words for positions and ids, and what can be wrong with bytes.
- `wire`, `schema`: how a message is declared, and what is read from the declaration.
- `metadata`, `control`, `chunks`, `diskless`, `groups`, `key_value`, `timelines`, `transactions`,
  `rpc`: the declarations.
- `codec`: messages to bytes and back, by functions that `codegen` writes. `interpreter` and
  `speller` do the same slowly; they say which field is wrong.
- `frame`: the value of a metadata record, the key of a control record.
- `batch`, `batch_writer`, with `varint` and `compression`: record batch v2, read and written.
- `object_keys`, `wal`: what objects in the store are called, and how one explains itself.

    value = encode_record(TopicRecord(name="orders", topic_id=random_uuid()))
    batch = build_value_batch([value], base_offset=0, leader_epoch=1, timestamp=0)
    [decode_record(record.value) for record in iter_records(read_batch(batch))]

It imports nothing of ours: every other room stands on it.
"""
