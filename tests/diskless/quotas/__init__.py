"""Tests of `diskless.quotas`."""
