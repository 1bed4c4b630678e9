"""What other settings would do to requests and costs: a model of a log's own history.

- `history` reads what producers sent, and when, from the coordinators' logs.
- `model` sends it again through brokers with other settings, and counts.

Source: docs/what-if.md.
"""
