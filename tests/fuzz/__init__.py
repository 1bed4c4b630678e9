"""Every decoder of bytes from outside, fed with damaged bytes.

- `targets`: the decoders, with the errors that each may raise and bytes to begin with.
- `mutation`: the damage, and the checksums that make damage get past the first check.

    ESKER_SOAK_SECONDS=600 pytest -m soak tests/fuzz -k batch

Source: docs/testing.md.
"""
