"""Who a caller is taken for."""

from __future__ import annotations

import pytest

from outrider.errors import InvalidRequest
from outrider.server.callers import Caller
from outrider.server.connections import ConnectionLimits, networks
from outrider.server.keys import ApiKey


def test_turns_are_taken_by_name_or_else_by_address() -> None:
    assert Caller("10.0.0.1", ApiKey("ann")).principal == Caller("10.0.0.2", ApiKey("ann")).principal
    assert Caller("10.0.0.1", ApiKey()).principal != Caller("10.0.0.2", ApiKey()).principal
    assert Caller("10.0.0.1").principal == Caller("::ffff:10.0.0.1").principal
    assert Caller("ann").principal != Caller("", ApiKey("ann")).principal


def test_a_household_has_one_turn() -> None:
    assert Caller("2001:db8::1").principal == Caller("2001:db8::ffff:1").principal
    assert Caller("2001:db8::1").principal != Caller("2001:db8:0:1::1").principal


def test_salts_of_different_names_are_different() -> None:
    salts = {Caller("", ApiKey(name)).salt(given) for name in ("ann", "eve", "") for given in ("ann", "eve", None)}
    assert len(salts) == 9
    assert Caller("10.0.0.1").salt(None) is None


def test_proxies() -> None:
    limits = ConnectionLimits(proxies=networks(["10.0.0.0/8", "::1"]))
    assert limits.of_proxy("10.1.2.3")
    assert limits.of_proxy("::1")
    assert not limits.of_proxy("11.0.0.1")
    assert not ConnectionLimits().of_proxy("10.1.2.3")
    for wrong in ("*", "proxy.example", ""):
        with pytest.raises(InvalidRequest, match="trusted-proxies"):
            networks([wrong])
