"""The one place in this folder that knows the shape of `gpumem-analyze --json`."""


def number(value, default=None):
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else default


def pick(tree, *path, default=None):
    """tree[path[0]][path[1]]…, or default when a step is missing."""
    for step in path:
        if isinstance(tree, dict) and step in tree:
            tree = tree[step]
        elif isinstance(tree, list) and isinstance(step, int) and -len(tree) <= step < len(tree):
            tree = tree[step]
        else:
            return default
    return tree


def device(report, ordinal=0):
    for entry in report.get("devices", []):
        if entry.get("ordinal") == ordinal:
            return entry
    return {}


def base_name(path):
    return str(path or "").rsplit("/", 1)[-1]


class Finding:
    """One entry of `findings`: what grows or is lost, where it was born, who holds it."""

    def __init__(self, raw):
        self.raw = raw
        self.kind = raw.get("kind", "")
        self.space = raw.get("space", "")
        self.bytes_per_step = number(raw.get("bytes_per_step"), 0)
        culprit = raw.get("culprit") or {}
        self.culprit = (base_name(culprit.get("file")), culprit.get("line"))
        self.born_at = [(base_name(b.get("file")), b.get("line")) for b in raw.get("born_at") or []]
        held = raw.get("held_by") or {}
        self.holder = (base_name(held.get("file")), held.get("line"))
        self.holder_text = held.get("text", "")

    def names_line(self, file, lines):
        return any(f == file and n in lines for f, n in [self.culprit, *self.born_at])

    def names_holder(self, file, lines):
        return self.holder[0] == file and self.holder[1] in lines


def findings(report):
    return [Finding(raw) for raw in report.get("findings") or []]


def peak_lines(report):
    """[(file, line, bytes)], largest first."""
    return [(base_name(e.get("file")), e.get("line"), number(e.get("bytes"), 0)) for e in pick(report, "peak", "by_line", default=[])]


def self_check(report):
    return number(pick(report, "self_check", "events_checked"), 0), number(pick(report, "self_check", "disagreements"))
