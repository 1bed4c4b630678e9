"""The core's settings; names and defaults are Kafka's where Kafka has them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    """Timeouts and limits; times in milliseconds, sizes in bytes.

    Source: KIP-595, Configurations.

    Raises: ValueError naming the setting, if one is impossible.
    """

    election_timeout_ms: int = 1000  # waits T + uniform [0, T) for an election to succeed
    fetch_timeout_ms: int = 2000  # before a follower gives up its leader; check-quorum: 1.5 times
    election_backoff_max_ms: int = 1000  # the least preferred successor waits this long
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20  # doubles with each failure in a row
    retry_backoff_max_ms: int = 500
    fetch_max_wait_ms: int = 500  # how long the leader may park our Fetches
    fetch_max_bytes: int = 8 * 1024 * 1024
    max_uncommitted_bytes: int = 64 * 1024 * 1024  # further proposals are refused
    max_waiting_reads: int = 10_000  # further linearizable reads are refused
    failover_silence_ms: int = 100  # after losing the connection to the leader
    failover_jitter_ms: int = 150  # then uniform [0, jitter), so that two do not collide
    pre_vote_repeat_ms: int = 50
    tell_fork_ms: int = 1000  # a member in doubt tells each voter of it this often
    observer_session_ms: int = 300_000  # an observer silent for longer is forgotten
    max_observers: int = 1000  # tracked at once; the one silent longest is forgotten first

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < (0 if name == "failover_jitter_ms" else 1):
                raise ValueError(f"{name}={getattr(self, name)} is too small")
        if self.fetch_max_wait_ms >= self.fetch_timeout_ms:
            raise ValueError(
                f"fetch_max_wait_ms={self.fetch_max_wait_ms} must be below "
                f"fetch_timeout_ms={self.fetch_timeout_ms}, or waiting looks like a dead leader"
            )

    @property
    def check_quorum_timeout_ms(self) -> int:
        """Return the time in ms after which a leader without Fetches from a majority resigns."""
        return self.fetch_timeout_ms * 3 // 2
