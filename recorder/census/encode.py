"""Serializes a census as gpumemtrace.Census (proto/gpumemtrace/trace.proto), columns by the C code of struct."""
import struct


def _varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field, value):
    return _varint(field << 3) + _varint(value) if value else b''


def _bytes(field, value):
    return _varint(field << 3 | 2) + _varint(len(value)) + value if value else b''


class _Texts:
    def __init__(self):
        self.index = {'': 0}

    def __call__(self, text):
        return self.index.setdefault(text, len(self.index))


def encode(result, trigger):
    texts = _Texts()
    rows = result.tensors
    count = len(rows)
    out = [_number(1, trigger), _bytes(2, result.partial.encode('utf-8', 'backslashreplace')), _number(3, int(result.duration * 1e6)),
           _number(4, result.objects), _number(5, result.reached), _number(6, 1 if result.collector_enabled else 0),
           _number(8, max(result.memory, 0))]
    columns = []
    for field, name in ((10, 'address'), (11, 'bytes'), (12, 'storage_bytes')):
        values = [getattr(row, name) & 0xFFFFFFFFFFFFFFFF for row in rows]
        columns.append(_bytes(field, struct.pack('<%dQ' % count, *values)))
    for field, name in ((13, 'shape'), (14, 'dtype'), (15, 'name'), (16, 'grad_fn')):
        values = [texts(getattr(row, name)) for row in rows]
        columns.append(_bytes(field, struct.pack('<%dI' % count, *values)))
    columns.append(_bytes(17, struct.pack('<%dI' % count, *[row.holder + 1 for row in rows])))
    for field, name in ((18, 'role'), (19, 'framework'), (20, 'flags')):
        columns.append(_bytes(field, bytes([getattr(row, name) for row in rows])))
    columns.append(_bytes(21, bytes([row.device & 255 for row in rows])))
    holders = []
    for holder in result.holders:
        body = b''.join((
            _number(1, holder.kind), _number(2, texts(holder.path)), _number(3, texts(holder.example)),
            _number(4, texts(holder.container)), _number(5, texts(holder.container_type)),
            _varint(6 << 3) + _varint(holder.items) if holder.items >= 0 else b'',
            _number(7, texts(holder.owner)), _number(8, texts(holder.detail)), _number(9, texts(holder.file)),
            _number(10, holder.line),
            _bytes(11, b''.join(_varint(texts(file)) for file, _ in holder.stores)),
            _bytes(12, b''.join(_varint(line) for _, line in holder.stores))))
        holders.append(_varint(30 << 3 | 2) + _varint(len(body)) + body)
    for text in texts.index:
        # Names of files need not be Unicode. Present even when empty: positions count.
        value = text.encode('utf-8', 'backslashreplace')
        out.append(_varint(7 << 3 | 2) + _varint(len(value)) + value)
    return b''.join(out + columns + holders)
