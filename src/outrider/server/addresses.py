"""Addresses, and who has how many of them."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

_NETWORK = 64
"""Bits of an IPv6 address that one household shares: it has the rest to itself."""


def household(address: str) -> str:
    """Whose an address is, as far as can be told: of IPv6 a network, otherwise itself."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> (128 - _NETWORK) << (128 - _NETWORK))}/{_NETWORK}"
