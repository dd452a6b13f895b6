"""Takes censuses out of a trace, so that a test can ask what the report says without them."""


def crc32c(data, table=[]):
    if not table:
        for value in range(256):
            for _ in range(8):
                value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
            table.append(value)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(data):
    """(number, value, whole encoding) of each field of a message; value is an int or bytes."""
    at = 0
    while at < len(data):
        begin = at
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 2:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            size = 8 if kind == 1 else 4
            value, at = data[at:at + size], at + size
        yield key >> 3, value, data[begin:at]


def encoded(number, data):
    out, value = bytearray([number << 3 | 2]), len(data)
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out) + data


def without_censuses(trace, numbers):
    """The trace (bytes) without the parts of the censuses of these numbers."""
    CENSUS_PART = 30  # of Content; its field 1 is the census's number
    packets = []
    for _, packet, whole in fields(trace):
        content = next(value for number, value, _ in fields(packet) if number == 2)
        if content.find(b"\xf2\x01") < 0:  # the key of field 30
            packets.append(whole)
            continue
        kept = b"".join(encoding for number, value, encoding in fields(content)
                        if number != CENSUS_PART or next(v for n, v, _ in fields(value) if n == 1) not in numbers)
        packets.append(encoded(1, b"\x0d" + crc32c(kept).to_bytes(4, "little") + encoded(2, kept)))
    return b"".join(packets)
