"""Tests of local segments. See docs/design/local-segments.md."""
