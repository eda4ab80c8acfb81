"""What every transport says in the same words: a closed stream, and a handler that failed."""

from __future__ import annotations

import asyncio

from ostinato.errors import OstinatoError, UnavailableError
from ostinato.wire.protocol import NodeStream, StreamHandler

CLOSED_HERE = "the stream was closed on this side"


def connection_closed(reason: str, *, peer: str) -> UnavailableError:
    """Error for any call on a stream that has ended, `reason` saying how."""
    return UnavailableError("CONNECTION_CLOSED", f"the stream with {peer} has ended: {reason}", subject=peer)


async def run_handler(handler: StreamHandler, stream: NodeStream) -> None:
    """Serve one stream to its end and close it.

    A handler that meets the end of its stream has done its work. Any other error has no caller who could
    receive it, so it goes to the event loop's exception handler, and ends this stream alone.
    """
    try:
        await handler(stream)
    except Exception as error:  # noqa: BLE001 - reported below; one stream must not end the node
        if not (isinstance(error, OstinatoError) and error.code == "CONNECTION_CLOSED"):
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the handler of the stream with {stream.peer} failed", "exception": error}
            )
    finally:
        await stream.close()
