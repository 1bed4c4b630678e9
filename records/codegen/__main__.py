"""Prints the codec of a message: `python -m records.codegen PartitionRecord 1`."""

import sys
from typing import Final

from records.codegen.decoder import decoder_source
from records.codegen.encoder import encoder_source
from records.frame import CONTROL_RECORDS, METADATA_RECORDS
from records.rpc import API

USAGE: Final = "usage: python -m records.codegen MESSAGE VERSION, for example PartitionRecord 1"


def main(arguments: list[str]) -> None:
    classes = [*METADATA_RECORDS.values(), *CONTROL_RECORDS.values()]
    classes += [cls for api in API.values() for cls in api]
    by_name = {cls.__name__: cls for cls in classes}
    if len(arguments) != 2 or arguments[0] not in by_name or not arguments[1].isdecimal():
        sys.exit(USAGE)
    cls, version = by_name[arguments[0]], int(arguments[1])
    if version not in cls.schema().versions:
        sys.exit(f"{cls.__name__} has versions {cls.schema().versions}")
    print(decoder_source(cls, version).text(), encoder_source(cls, version).text(), sep="\n\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
