"""Prints the codec of a message: `python -m records.codegen PartitionRecord 1`."""

import sys

from records.codegen.decoder import decoder_source
from records.codegen.encoder import encoder_source
from records.frame import CONTROL_RECORDS, METADATA_RECORDS
from records.rpc import API

_classes = [
    *METADATA_RECORDS.values(),
    *CONTROL_RECORDS.values(),
    *(cls for api in API.values() for cls in api),
]
_name, _version = sys.argv[1], int(sys.argv[2])
_cls = next(cls for cls in _classes if cls.__name__ == _name)
print(decoder_source(_cls, _version).text(), encoder_source(_cls, _version).text(), sep="\n\n\n")
