"""Prints the conformance table."""

from coordinator.conformance.printing import printed

if __name__ == "__main__":
    print(printed(), end="")
