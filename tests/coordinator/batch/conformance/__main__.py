"""Prints the conformance table."""

from tests.coordinator.batch.conformance.printing import printed

if __name__ == "__main__":
    print(printed(), end="")
