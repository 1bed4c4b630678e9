"""Tests of the transaction log."""
