"""Heads of HTTP requests and responses, read strictly and written anew."""

import re
from dataclasses import dataclass

__all__ = ["Head", "RefusedRequest", "parsed_head"]

_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_NOT_PASSED = {
    *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization"),
    *(b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"),
    *(b"host", b"content-length", b"forwarded", b"x-forwarded-for", b"x-forwarded-proto"),
}


class RefusedRequest(Exception):  # noqa: N818
    """A request that is not passed; the status says why."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True)
class Head:
    """The head of a request or a response that is passed."""

    line: bytes
    fields: list[tuple[bytes, bytes]]
    length: int

    def written(self, host: bytes | None, *, close: bool = False) -> bytes:
        """Return the head, written anew with what the gate itself decides."""
        fields = [(name, value) for name, value in self.fields if name.lower() not in _NOT_PASSED]
        fields += [] if host is None else [(b"Host", host)]
        fields += [(b"Content-Length", b"%d" % self.length)]
        fields += [(b"Connection", b"close" if close else b"keep-alive")]
        return b"\r\n".join([self.line, *(b"%s: %s" % field for field in fields), b"", b""])


def parsed_head(line: bytes, lines: list[bytes], most: int) -> Head:
    """Return a head whose body has one length and no other coding."""
    fields = []
    for each in lines:
        found = _FIELD.fullmatch(each)
        if found is None:
            raise RefusedRequest(400)
        fields.append((found[1], found[2]))
    names = [name.lower() for name, _ in fields]
    if b"transfer-encoding" in names or names.count(b"content-length") != 1:
        raise RefusedRequest(411)
    length = fields[names.index(b"content-length")][1]
    if not _LENGTH.fullmatch(length):
        raise RefusedRequest(400)
    if int(length) > most:
        raise RefusedRequest(413)
    return Head(line, fields, int(length))
