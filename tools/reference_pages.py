"""Makes the pages of the Python reference from the stubs and the docstrings."""

# Design: a stub defines the public names of a module and their signatures. The
# docstring is read from the imported object. A module that cannot be imported
# here, because its host package is missing, is left out with a message.

import ast
import builtins
import contextlib
import importlib
import inspect
import pathlib
import re

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "python/haulway"


def modules():
    """Yields (name, stub) of every module that has a stub."""
    for stub in sorted(PACKAGE.rglob("*.pyi")):
        parts = stub.relative_to(PACKAGE.parent).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if not any(part.startswith("_") for part in parts):
            yield ".".join(parts), stub


def declarations(body):
    """Returns {name: [node]} of the functions and classes in a body, including
    those in its conditions."""
    found = {}
    for node in body:
        if isinstance(node, ast.If):
            for name, nodes in declarations(node.body).items():
                found.setdefault(name, []).extend(nodes)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            private = node.name.startswith("_")
            if not private and "type_check_only" not in decorators(node):
                found.setdefault(node.name, []).append(node)
    return found


def decorators(node):
    return {ast.unparse(each).split("(")[0] for each in node.decorator_list}


def signature(node, method):
    """Returns a function's parameters and result as in its stub."""
    arguments = node.args
    kind = decorators(node)
    if method and "staticmethod" not in kind:
        (arguments.posonlyargs or arguments.args or [None])[:1] = []
    text = f"({ast.unparse(arguments)})"
    if node.returns is not None and ast.unparse(node.returns) != "None":
        text += f" -> {ast.unparse(node.returns)}"
    return plain(text)


def plain(annotation):
    """Returns an annotation without names that only the stub has."""
    return re.sub(r"\b_(?=[A-Z]|torch\b)", "", annotation)


def docstring(thing):
    text = inspect.getdoc(thing) or ""
    if thing is None or isinstance(thing, (bool, int, str, tuple, list, dict)):
        return ""
    # A binding's docstring begins with the signature.
    lines = text.splitlines()
    while lines and re.match(r"\w+\(.*\) ?(->.*)?$", lines[0]):
        del lines[0]
    text = as_markdown("\n".join(lines).strip())
    return re.sub(r"docs/([\w/-]+\.md)", r"[](../\1)", text)


def as_markdown(text):
    """Converts a docstring to Markdown: `name: meaning` begins a list item,
    which includes the indented lines below; other indented lines are code."""
    lines, item = [], False
    for line in text.splitlines():
        begins = re.match(r"(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): (?=\S)", line)
        if begins and not re.match(r"https?$|Raises$", begins[1]):
            if not item:
                lines.append("")
            line, item = f"- `{begins[1]}`: {line[begins.end():]}", True
        elif item and line.startswith("    "):
            line = "  " + line.strip()
        elif line.strip():
            if item:
                lines.append("")
            item = False
        lines.append(line)
    return "\n".join(escaped(lines))


def escaped(lines):
    for line in lines:
        # In docstrings these characters are not markup.
        yield line if line.startswith("    ") else re.sub(
            r"(?<![`\\\w])([*<_])", r"\\\1", line) if "`" not in line else line


def directive(kind, name, signatures, body, level):
    fence = ":" * level
    for each in signatures[:-1]:
        yield f"{fence}{{{kind}}} {name}{each}\n:no-index:\n{fence}\n"
    head = f"{fence}{{{kind}}} {name}{signatures[-1] if signatures else ''}"
    # Options follow the first line at once; behind an empty line they are text.
    yield head if body.startswith(":") else f"{head}\n"
    yield body
    yield f"{fence}\n"


def unlinked(name):
    """Returns the option for a field that is named like a type of Python's: in
    signatures the name is that of the type, which would lead to the field."""
    return ":no-index:\n" if hasattr(builtins, name) else ""


def class_body(node, thing):
    yield docstring(thing) if own_doc(thing) else ""
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and field.target.id[0] != "_":
            yield from directive(
                "py:attribute", field.target.id, [],
                f":type: {plain(ast.unparse(field.annotation))}\n"
                f"{unlinked(field.target.id)}", 4)
    for name, nodes in declarations(node.body).items():
        member = getattr(thing, name, None)
        kinds = decorators(nodes[0])
        if kinds & {"property", "cached_property"}:
            result = nodes[0].returns
            kind, shown = "py:property", []
            options = unlinked(name) + (
                "" if result is None else
                f":type: {plain(ast.unparse(result))}\n")
            yield from directive(kind, name, shown,
                                 f"{options}\n{docstring(member)}", 4)
        elif isinstance(nodes[0], ast.FunctionDef):
            options = "".join(
                f":{each}:\n" for each in ("classmethod", "staticmethod")
                if each in kinds)
            yield from directive(
                "py:method", name, [signature(each, True) for each in nodes],
                f"{options}\n{docstring(member)}", 4)


def own_doc(thing):
    """Returns whether a class has a docstring that it did not inherit."""
    return "__doc__" in vars(thing) and thing.__doc__


def class_signature(node):
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return [signature(each, True)]
    return []


def module_page(name, stub):
    """Returns the page of a module, or None if the module declares nothing."""
    module = importlib.import_module(name)
    found = declarations(ast.parse(stub.read_text()).body)
    found = {each: nodes for each, nodes in found.items()
             if hasattr(module, each)}
    # Objects, and names of the extension, are described by their docstring
    # only.
    bare = [each for each in getattr(module, "__all__", ())
            if each not in found and each[0] != "_"
            and docstring(getattr(module, each, None))
            and not inspect.ismodule(getattr(module, each))]
    if not found and not bare:
        return None
    lines = [f"# {name}\n", docstring(module),
             f"\n:::{{py:currentmodule}} {name}\n:::\n"]
    for each, nodes in sorted(found.items(), key=lambda one: (
            isinstance(one[1][0], ast.ClassDef), one[0])):
        thing = getattr(module, each)
        if isinstance(nodes[0], ast.ClassDef):
            lines += directive("py:class", each, class_signature(nodes[0]),
                               "\n".join(class_body(nodes[0], thing)), 5)
        else:
            lines += directive("py:function", each,
                               [signature(one, False) for one in nodes],
                               docstring(thing), 5)
    for each in bare:
        kind = "py:class" if inspect.isclass(getattr(module, each)) else "py:data"
        lines += directive(kind, each, [], docstring(getattr(module, each)), 5)
    return "\n".join(lines)


def write(folder):
    """Writes a page for each module; returns the name of their list."""
    folder.mkdir(parents=True)
    rows, names = [], []
    for name, stub in modules():
        page = None
        with contextlib.suppress(ImportError):
            page = module_page(name, stub)
        if page is None:
            continue
        (folder / f"{name}.md").write_text(page)
        first = (inspect.getdoc(importlib.import_module(name)) or "")
        rows.append(f"| [{name}](python/{name}.md) | {first.split(chr(10))[0]} |")
        names.append(f"python/{name}")
    folder.with_suffix(".md").write_text(
        "# Python modules\n\nMade of the docstrings and the stubs of the "
        "package.\n\n| module | |\n|---|---|\n" + "\n".join(rows) +
        "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n")
    return "python.md"
