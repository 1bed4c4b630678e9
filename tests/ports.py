"""Ports for the processes that tests start. See `examples.ports`."""

from examples.ports import BLOCK, HOST, NoPortError, free_port, free_ports, free_row

__all__ = ["BLOCK", "HOST", "NoPortError", "free_port", "free_ports", "free_row"]
