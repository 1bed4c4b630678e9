"""Local segments: files on a broker's disk with the batches that it serves.

`format` has the bytes of the files, `directory` claims the directory, `segment` is one segment and
its files, `cache` decides which bytes answer a Fetch and which are kept, `write_behind` writes
them, `filler` adds what this broker wrote and discards what is gone, `inspection` describes a
directory.

Source: KIP-1163, Caching in local segments; docs/design/local-segments.md.
"""
