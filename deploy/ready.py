"""Probe of a container: end with 0 if /ready is 200, with --alive if the HTTP port accepts a connection at all.

The port is that of --http on this machine, with or without TLS. The certificate is not verified, because the connection
does not leave the container.
"""

import socket
import ssl
import sys
import urllib.error
import urllib.request

HOST, PORT, TIMEOUT_S = "127.0.0.1", 8080, 4.0


def ready(port=PORT):
    """Return the status of /ready, 0 without an answer."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for scheme in ("http", "https"):
        try:
            url, encrypted = f"{scheme}://{HOST}:{port}/ready", context if scheme == "https" else None
            with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=encrypted) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            continue
    return 0


def alive(port=PORT):
    """Return whether the port accepts a connection."""
    try:
        socket.create_connection((HOST, port), TIMEOUT_S).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(0 if (alive() if "--alive" in sys.argv[1:] else ready() == 200) else 1)
