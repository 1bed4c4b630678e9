"""moto's S3 server with conditional writes that are atomic, as S3's are.

The trap: moto asks whether a key exists and stores the object some statements later, in one thread
for each request. Two uploads under one key may then both succeed.

    python -m tests.diskless.stores.moto_server -H 127.0.0.1 -p 5000

With ESKER_MOTO_OVERWRITES=1 it is like the S3 servers that do not heed If-None-Match.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main
from werkzeug.datastructures import Headers


def make_writes_atomic() -> None:
    """Let one thread at a time store an object; its body has been received by then."""
    put_object, lock = S3Response.put_object, threading.Lock()

    def put_alone(response: S3Response) -> Any:
        with lock:
            return put_object(response)

    S3Response.put_object = put_alone


def ignore_conditions() -> None:
    """Store each object whose upload is asked for, also under a key that is taken."""
    put_object = S3Response.put_object

    def put_always(response: S3Response) -> Any:
        response.headers = Headers(
            [(name, value) for name, value in response.headers.items() if name != "If-None-Match"]
        )
        return put_object(response)

    S3Response.put_object = put_always


if __name__ == "__main__":
    make_writes_atomic()
    if os.environ.get("ESKER_MOTO_OVERWRITES") == "1":
        ignore_conditions()
    main()
