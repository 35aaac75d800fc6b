"""Ports of this machine for tests that run beside each other."""

import socket
import time

CLAIMS = []


def free_port():
    """A port that is free, with the one after it. The one before it stays bound until this process ends: no other
    process that asks here is given the same two."""
    for port in range(21000, 30000, 7):
        claim = socket.socket()
        with socket.socket() as first, socket.socket() as second:
            try:
                claim.bind(("127.0.0.1", port - 1))
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                claim.close()
                continue
        CLAIMS.append(claim)
        return port
    raise AssertionError


def wait_for_port(port, seconds=60):
    """Until somebody listens there."""
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < end, f"nobody listens at {port}"
            time.sleep(0.2)
