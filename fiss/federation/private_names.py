"""Class names as they travel where the server is not to read them."""

import hashlib
import hmac


def private(name: str, key: str) -> str:
    """Sites that share the key agree on what a name becomes; others cannot read it."""
    return hmac.new(key.encode(), name.encode(), hashlib.sha256).hexdigest()[:32]
