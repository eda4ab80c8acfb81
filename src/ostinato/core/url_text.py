"""URLs as they may be shown: in messages, logs and announcements, where nobody should read a password."""

from __future__ import annotations

import re

#: What stands for a password.
MASK = "***"

#: Within any text. After the colon stands a password, unless it is a port; it may hold what it should not.
_PASSWORD = re.compile(
    r"(\b[a-z][a-z0-9+.\-]{0,20}://(?!\[)[^\s/:@?#]{0,200}):(?!\d{1,5}(?:[/?#]|$))[^\s]{1,500}@",
    re.IGNORECASE,
)
#: A user name without a password is a token for many a web server, and for a database just a name.
_TOKEN = re.compile(r"(\bhttps?://)[^\s/:@?#]{1,500}@", re.IGNORECASE)
_QUERY = re.compile(
    r"([?&;][^\s=&;#]{0,100}(?:password|passwd|secret|token|api_?key|credential|signature)[^\s=&;#]{0,100}=)"
    r"[^\s&;#]{1,2000}",
    re.IGNORECASE,
)
#: What everybody reads the same host and the same password in.
_WHOLE = re.compile(
    r"[a-z][a-z0-9+.\-]*://(?:[^\s/?#@]*@)?(?:\[[0-9a-f:.]+\]|[^\s/?#@:\[\]]+)(?::\d{0,5})?(?:[/?#]\S*)?",
    re.IGNORECASE,
)
#: In what is no URL: everything before the last "@" may be meant as user and password.
_REFUSED = re.compile(r"(\s*(?:[a-z][a-z0-9+.\-]*:/{1,3})?)([^:@]*)(:?).*@", re.IGNORECASE | re.DOTALL)


def without_passwords(text: str, *, mask: str = MASK) -> str:
    """`text` with `mask` for the passwords of all URLs in it, and for what their queries name a secret."""
    if "://" not in text:
        return text
    text = _PASSWORD.sub(lambda found: f"{found[1]}:{mask}@", text)
    text = _TOKEN.sub(lambda found: f"{found[1]}{mask}@", text)
    return _QUERY.sub(lambda found: f"{found[1]}{mask}", text)


def shown_url(url: str) -> str:
    """What is or should have been one URL, as an error may quote it.

    Where it is none, nobody can say which part was meant as the password: it is everything up to the ``@``.
    """
    if _WHOLE.fullmatch(url):
        return without_passwords(url)
    shown = _REFUSED.sub(
        lambda found: f"{found[1]}{found[2]}:{MASK}@" if found[3] else f"{found[1]}{MASK}@", url, count=1
    )
    return _QUERY.sub(lambda found: f"{found[1]}{MASK}", shown)
