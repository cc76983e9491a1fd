"""How objects show themselves: repr() in one short line, tables in notebooks.

A line names the class and what the object holds. It has no address, no list
and at most 199 characters. Text comes from files and may hold anything: it is
quoted, control characters are escaped, and HTML is escaped in tables.
"""

# Design: every class passes facts to described(), which quotes, shortens and joins
# them, so that no class can print a whole list or a raw name. reprlib limits
# values of any type; strings are cut before they are quoted, because repr() of
# a long one costs as much as reading it. Tables take a limited number of rows:
# a checkpoint may have 100,000 tensors.


from __future__ import annotations

import functools
import itertools

from ._importing import imported, importing

_MOST = 199
_LONGEST_TEXT = 48
_ROWS = 200


@functools.cache
def _limited():
    reprlib = imported("reprlib")
    made = reprlib.Repr()
    made.maxlevel, made.maxother, made.maxlong = 2, _LONGEST_TEXT, 40
    made.maxstring = _LONGEST_TEXT
    made.maxdict = made.maxlist = made.maxtuple = made.maxset = 4
    return made


def shown(value, most=_LONGEST_TEXT):
    """Returns a value as one line of about `most` characters. A longer text
    keeps its end, which is where names of files and tensors differ; a message
    keeps its beginning, which is the cause."""
    if isinstance(value, str):
        if len(value) > most and "; " in value:
            value = value[:most - 3] + "..."
        elif len(value) > most:
            value = "..." + value[len(value) - most + 3:]
        text = repr(str(value))
        return text if len(text) <= 2 * most else f"{text[:2 * most]}...'"
    text = " ".join(_limited().repr(value).split())
    return text if len(text) <= most else f"{text[:most - 3]}..."


def public(package, *classes):
    """Gives classes the name of the package that users import them from, which
    messages, help() and pickles then show, in place of a private module's."""
    for cls in classes:
        cls.__module__ = package


def described(value, *facts):
    """Returns a line such as "<haulway.Checkpoint 'model.pt', 12 tensors>": the
    class of an object and facts. A fact is a short text or None."""
    cls = type(value)
    first, *rooms = cls.__module__.split(".")
    public = itertools.takewhile(lambda name: not name.startswith("_"), rooms)
    head = ".".join((first, *public, cls.__qualname__))
    text = ", ".join(fact for fact in facts if fact)
    line = f"<{head} {text}>" if text else f"<{head}>"
    return line if len(line) <= _MOST else f"{line[:_MOST - 4]}...>"


def counted(number, noun):
    """Returns a count with its noun: "1 tensor", "1,200 tensors"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def bytes_text(number):
    """Returns a size with a unit, exact below 1 KiB: "1.5 MiB"."""
    if number < 1024:
        return counted(number, "byte")
    size, units = float(number), iter(("KiB", "MiB", "GiB", "TiB", "PiB"))
    for unit in units:
        size /= 1024
        if size < 1023.95 or unit == "PiB":
            return f"{size:.1f} {unit}"


def path_text(path):
    """Returns a path, or a URL without credentials and query."""
    scheme, mark, rest = path.partition("://")
    if mark and "/" not in scheme:
        host, slash, below = rest.partition("?")[0].partition("/")
        path = f"{scheme}://{host.rpartition('@')[2]}{slash}{below}"
    return shown(path, 80)


def table(title, head, rows, total):
    """Returns an HTML table of the first rows; all text in it is escaped.

    total: the number of all rows.
    """
    with importing:
        from html import escape

    def line(cells, tag):
        return "".join(
            f"<{tag} style='text-align:left'>{escape(str(cell))}</{tag}>"
            for cell in cells
        )

    body = "".join(
        f"<tr>{line(row, 'td')}</tr>" for row in itertools.islice(rows, _ROWS)
    )
    if total > _ROWS:
        left = f"and {total - _ROWS:,} more"
        body += f"<tr><td colspan='{len(head)}'>{left}</td></tr>"
    headed = f"<thead><tr>{line(head, 'th')}</tr></thead>" if head else ""
    return (f"<table><caption>{escape(title)}</caption>{headed}"
            f"<tbody>{body}</tbody></table>")
