"""Quotas of clients on a broker: rates, and the throttling of who exceeds them."""
