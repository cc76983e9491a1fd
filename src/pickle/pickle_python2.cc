#include "pickle/pickle_python2.h"

#include <algorithm>
#include <span>

namespace haulway {

namespace {

// Python's own tables (_compat_pickle), from Python 3 to 2: single names,
// exceptions, then whole modules.
struct NameRow {
  GlobalName to;
  GlobalName from;
};
constexpr NameRow kPython2Names[] = {
    {{"__builtin__", "reduce"}, {"_functools", "reduce"}},
    {{"socket", "_socketobject"}, {"_socket", "socket"}},
    {{"__builtin__", "unichr"}, {"builtins", "chr"}},
    {{"itertools", "ifilter"}, {"builtins", "filter"}},
    {{"__builtin__", "long"}, {"builtins", "int"}},
    {{"itertools", "imap"}, {"builtins", "map"}},
    {{"__builtin__", "xrange"}, {"builtins", "range"}},
    {{"__builtin__", "unicode"}, {"builtins", "str"}},
    {{"itertools", "izip"}, {"builtins", "zip"}},
    {{"UserDict", "IterableUserDict"}, {"collections", "UserDict"}},
    {{"UserList", "UserList"}, {"collections", "UserList"}},
    {{"UserString", "UserString"}, {"collections", "UserString"}},
    {{"whichdb", "whichdb"}, {"dbm", "whichdb"}},
    {{"__builtin__", "reduce"}, {"functools", "reduce"}},
    {{"CGIHTTPServer", "CGIHTTPRequestHandler"},
     {"http.server", "CGIHTTPRequestHandler"}},
    {{"SimpleHTTPServer", "SimpleHTTPRequestHandler"},
     {"http.server", "SimpleHTTPRequestHandler"}},
    {{"itertools", "ifilterfalse"}, {"itertools", "filterfalse"}},
    {{"itertools", "izip_longest"}, {"itertools", "zip_longest"}},
    {{"_multiprocessing", "Connection"},
     {"multiprocessing.connection", "Connection"}},
    {{"multiprocessing", "AuthenticationError"},
     {"multiprocessing.context", "AuthenticationError"}},
    {{"multiprocessing", "BufferTooShort"},
     {"multiprocessing.context", "BufferTooShort"}},
    {{"multiprocessing.process", "Process"},
     {"multiprocessing.context", "Process"}},
    {{"multiprocessing", "ProcessError"},
     {"multiprocessing.context", "ProcessError"}},
    {{"multiprocessing", "TimeoutError"},
     {"multiprocessing.context", "TimeoutError"}},
    {{"multiprocessing.forking", "Popen"},
     {"multiprocessing.popen_fork", "Popen"}},
    {{"_socket", "fromfd"}, {"socket", "fromfd"}},
    {{"__builtin__", "intern"}, {"sys", "intern"}},
    {{"FileDialog", "FileDialog"}, {"tkinter.filedialog", "FileDialog"}},
    {{"FileDialog", "LoadFileDialog"},
     {"tkinter.filedialog", "LoadFileDialog"}},
    {{"FileDialog", "SaveFileDialog"},
     {"tkinter.filedialog", "SaveFileDialog"}},
    {{"SimpleDialog", "SimpleDialog"},
     {"tkinter.simpledialog", "SimpleDialog"}},
    {{"urllib", "ContentTooShortError"},
     {"urllib.error", "ContentTooShortError"}},
    {{"urllib2", "HTTPError"}, {"urllib.error", "HTTPError"}},
    {{"urllib2", "URLError"}, {"urllib.error", "URLError"}},
    {{"urllib", "quote"}, {"urllib.parse", "quote"}},
    {{"urllib", "quote_plus"}, {"urllib.parse", "quote_plus"}},
    {{"urllib", "unquote"}, {"urllib.parse", "unquote"}},
    {{"urllib", "unquote_plus"}, {"urllib.parse", "unquote_plus"}},
    {{"urllib", "urlencode"}, {"urllib.parse", "urlencode"}},
    {{"urllib", "getproxies"}, {"urllib.request", "getproxies"}},
    {{"urllib", "pathname2url"}, {"urllib.request", "pathname2url"}},
    {{"urllib", "url2pathname"}, {"urllib.request", "url2pathname"}},
    {{"urllib", "urlcleanup"}, {"urllib.request", "urlcleanup"}},
    {{"urllib", "urlopen"}, {"urllib.request", "urlopen"}},
    {{"urllib", "urlretrieve"}, {"urllib.request", "urlretrieve"}},
    {{"DocXMLRPCServer", "DocCGIXMLRPCRequestHandler"},
     {"xmlrpc.server", "DocCGIXMLRPCRequestHandler"}},
    {{"DocXMLRPCServer", "DocXMLRPCRequestHandler"},
     {"xmlrpc.server", "DocXMLRPCRequestHandler"}},
    {{"DocXMLRPCServer", "DocXMLRPCServer"},
     {"xmlrpc.server", "DocXMLRPCServer"}},
    {{"DocXMLRPCServer", "ServerHTMLDoc"}, {"xmlrpc.server", "ServerHTMLDoc"}},
    {{"DocXMLRPCServer", "XMLRPCDocGenerator"},
     {"xmlrpc.server", "XMLRPCDocGenerator"}},
};

// Builtin exceptions that Python 2 has in `exceptions`. Sorted.
constexpr std::string_view kExceptions[] = {"ArithmeticError",
                                            "AssertionError",
                                            "AttributeError",
                                            "BaseException",
                                            "BufferError",
                                            "BytesWarning",
                                            "DeprecationWarning",
                                            "EOFError",
                                            "EnvironmentError",
                                            "Exception",
                                            "FloatingPointError",
                                            "FutureWarning",
                                            "GeneratorExit",
                                            "IOError",
                                            "ImportError",
                                            "ImportWarning",
                                            "IndentationError",
                                            "IndexError",
                                            "KeyError",
                                            "KeyboardInterrupt",
                                            "LookupError",
                                            "MemoryError",
                                            "NameError",
                                            "NotImplementedError",
                                            "OSError",
                                            "OverflowError",
                                            "PendingDeprecationWarning",
                                            "ReferenceError",
                                            "RuntimeError",
                                            "RuntimeWarning",
                                            "StopIteration",
                                            "SyntaxError",
                                            "SyntaxWarning",
                                            "SystemError",
                                            "SystemExit",
                                            "TabError",
                                            "TypeError",
                                            "UnboundLocalError",
                                            "UnicodeDecodeError",
                                            "UnicodeEncodeError",
                                            "UnicodeError",
                                            "UnicodeTranslateError",
                                            "UnicodeWarning",
                                            "UserWarning",
                                            "ValueError",
                                            "Warning",
                                            "ZeroDivisionError"};

constexpr std::string_view kOsErrors[] = {
    "BrokenPipeError",        "ChildProcessError",
    "ConnectionAbortedError", "ConnectionError",
    "ConnectionRefusedError", "ConnectionResetError",
    "FileExistsError",        "FileNotFoundError",
    "InterruptedError",       "IsADirectoryError",
    "NotADirectoryError",     "PermissionError",
    "ProcessLookupError",     "TimeoutError"};

struct ModuleRow {
  std::string_view to;
  std::string_view from;
};
constexpr ModuleRow kModules[] = {
    {"bz2", "_bz2"},
    {"dbm", "_dbm"},
    {"dummy_thread", "_dummy_thread"},
    {"functools", "_functools"},
    {"gdbm", "_gdbm"},
    {"markupbase", "_markupbase"},
    {"pickle", "_pickle"},
    {"thread", "_thread"},
    {"__builtin__", "builtins"},
    {"_abcoll", "collections.abc"},
    {"ConfigParser", "configparser"},
    {"copy_reg", "copyreg"},
    {"anydbm", "dbm"},
    {"dbhash", "dbm.bsd"},
    {"dumbdbm", "dbm.dumb"},
    {"gdbm", "dbm.gnu"},
    {"dbm", "dbm.ndbm"},
    {"htmlentitydefs", "html.entities"},
    {"HTMLParser", "html.parser"},
    {"httplib", "http.client"},
    {"cookielib", "http.cookiejar"},
    {"Cookie", "http.cookies"},
    {"BaseHTTPServer", "http.server"},
    {"Queue", "queue"},
    {"repr", "reprlib"},
    {"SocketServer", "socketserver"},
    {"commands", "subprocess"},
    {"test.test_support", "test.support"},
    {"Tkinter", "tkinter"},
    {"tkColorChooser", "tkinter.colorchooser"},
    {"tkCommonDialog", "tkinter.commondialog"},
    {"Tkconstants", "tkinter.constants"},
    {"Dialog", "tkinter.dialog"},
    {"Tkdnd", "tkinter.dnd"},
    {"tkFileDialog", "tkinter.filedialog"},
    {"tkFont", "tkinter.font"},
    {"tkMessageBox", "tkinter.messagebox"},
    {"ScrolledText", "tkinter.scrolledtext"},
    {"tkSimpleDialog", "tkinter.simpledialog"},
    {"Tix", "tkinter.tix"},
    {"ttk", "tkinter.ttk"},
    {"urlparse", "urllib.parse"},
    {"urllib2", "urllib.request"},
    {"robotparser", "urllib.robotparser"},
    {"_winreg", "winreg"},
    {"xmlrpclib", "xmlrpc.client"},
    {"SimpleXMLRPCServer", "xmlrpc.server"},
};

bool Holds(std::span<const std::string_view> sorted, std::string_view name) {
  return std::binary_search(sorted.begin(), sorted.end(), name);
}

}  // namespace

GlobalName Python2Name(std::string_view module, std::string_view name) {
  if (module.starts_with("torch")) return {module, name};
  for (const NameRow& row : kPython2Names) {
    if (row.from.name == name && row.from.module == module) return row.to;
  }
  if (module == "builtins") {
    if (Holds(kExceptions, name)) return {"exceptions", name};
    if (Holds(kOsErrors, name)) return {"exceptions", "OSError"};
    if (name == "ModuleNotFoundError") return {"exceptions", "ImportError"};
  }
  for (const ModuleRow& row : kModules) {
    if (row.from == module) return {row.to, name};
  }
  return {module, name};
}

}  // namespace haulway
