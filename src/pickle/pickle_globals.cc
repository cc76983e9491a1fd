// Design: a table lists the names that are data, by module and name, with the
// kind of their call. Names that contain a dtype (torch.FloatStorage,
// torch.cuda.sparse.HalfTensor) are split into words instead of listed 200
// times. Python 2 names are first renamed by Python's own table, so that each
// name is looked up in one spelling. The parser looks up each name in a pickle
// once, so rows are searched linearly; values keep the kind.
//
// Alternative not taken: ask PyTorch for its own list. That needs Python, and
// the list grows with versions; here every new name is visible in a diff. Names
// that only scans accept have their own table (scan/pickle_names.cc), so that
// they cannot become loadable by mistake.

#include "pickle/pickle_globals.h"

#include <algorithm>
#include <array>

namespace haulway {

namespace {

struct Row {
  std::string_view module;
  std::string_view name;
  GlobalKind kind;
};

// Names that torch.load(weights_only=True) accepts by default, except those
// with a dtype, which are below; and more plain data of Python.
constexpr Row kRows[] = {
    {"collections", "OrderedDict", GlobalKind::kOrderedDict},
    {"collections", "Counter", GlobalKind::kCounter},
    {"builtins", "dict", GlobalKind::kDict},
    {"builtins", "list", GlobalKind::kList},
    {"builtins", "tuple", GlobalKind::kTuple},
    {"builtins", "set", GlobalKind::kSet},
    {"builtins", "frozenset", GlobalKind::kFrozenSet},
    {"builtins", "bytes", GlobalKind::kBytes},
    {"builtins", "bytearray", GlobalKind::kByteArray},
    {"builtins", "complex", GlobalKind::kComplex},
    {"_codecs", "encode", GlobalKind::kCodecsEncode},
    {"collections", "defaultdict", GlobalKind::kDefaultDict},
    {"collections", "deque", GlobalKind::kDeque},
    {"argparse", "Namespace", GlobalKind::kDataClass},
    {"types", "SimpleNamespace", GlobalKind::kDataClass},
    {"builtins", "range", GlobalKind::kDataClass},
    {"builtins", "slice", GlobalKind::kDataClass},
    {"datetime", "date", GlobalKind::kDataClass},
    {"datetime", "datetime", GlobalKind::kDataClass},
    {"datetime", "time", GlobalKind::kDataClass},
    {"datetime", "timedelta", GlobalKind::kDataClass},
    {"datetime", "timezone", GlobalKind::kDataClass},
    {"decimal", "Decimal", GlobalKind::kDataClass},
    {"fractions", "Fraction", GlobalKind::kDataClass},
    {"pathlib", "Path", GlobalKind::kDataClass},
    {"pathlib", "PosixPath", GlobalKind::kDataClass},
    {"pathlib", "WindowsPath", GlobalKind::kDataClass},
    {"pathlib", "PurePath", GlobalKind::kDataClass},
    {"pathlib", "PurePosixPath", GlobalKind::kDataClass},
    {"pathlib", "PureWindowsPath", GlobalKind::kDataClass},
    {"pathlib._local", "Path", GlobalKind::kDataClass},
    {"pathlib._local", "PosixPath", GlobalKind::kDataClass},
    {"pathlib._local", "WindowsPath", GlobalKind::kDataClass},
    {"pathlib._local", "PurePath", GlobalKind::kDataClass},
    {"pathlib._local", "PurePosixPath", GlobalKind::kDataClass},
    {"pathlib._local", "PureWindowsPath", GlobalKind::kDataClass},
    {"numpy", "dtype", GlobalKind::kDataClass},
    {"numpy", "ndarray", GlobalKind::kDataType},
    {"numpy._core.multiarray", "_reconstruct", GlobalKind::kDataClass},
    {"numpy.core.multiarray", "_reconstruct", GlobalKind::kDataClass},
    {"numpy._core.multiarray", "scalar", GlobalKind::kDataClass},
    {"numpy.core.multiarray", "scalar", GlobalKind::kDataClass},
    {"numpy._core.numeric", "_frombuffer", GlobalKind::kDataClass},
    {"numpy.core.numeric", "_frombuffer", GlobalKind::kDataClass},
    {"builtins", "bool", GlobalKind::kDataType},
    {"builtins", "float", GlobalKind::kDataType},
    {"builtins", "int", GlobalKind::kDataType},
    {"builtins", "str", GlobalKind::kDataType},
    {"torch", "Tensor", GlobalKind::kTensor},
    {"torch", "Size", GlobalKind::kSize},
    {"torch", "device", GlobalKind::kDevice},
    {"torch.nn.parameter", "Parameter", GlobalKind::kParameter},
    {"torch.serialization", "_get_layout", GlobalKind::kGetLayout},
    {"torch._utils", "_rebuild_tensor", GlobalKind::kRebuildTensor},
    {"torch._utils", "_rebuild_tensor_v2", GlobalKind::kRebuildTensorV2},
    {"torch._utils", "_rebuild_tensor_v3", GlobalKind::kRebuildTensorV3},
    {"torch._utils", "_rebuild_parameter", GlobalKind::kRebuildParameter},
    {"torch._utils", "_rebuild_parameter_with_state",
     GlobalKind::kRebuildParameterWithState},
    {"torch._utils", "_rebuild_qtensor", GlobalKind::kRebuildQTensor},
    {"torch._utils", "_rebuild_sparse_tensor",
     GlobalKind::kRebuildSparseTensor},
    {"torch._utils", "_rebuild_meta_tensor_no_storage",
     GlobalKind::kRebuildMetaTensor},
    {"torch._utils", "_rebuild_nested_tensor",
     GlobalKind::kRebuildNestedTensor},
    {"torch._utils", "_rebuild_wrapper_subclass",
     GlobalKind::kRebuildWrapperSubclass},
    {"torch._utils", "_rebuild_device_tensor_from_cpu_tensor",
     GlobalKind::kRebuildDeviceTensorFromCpu},
    {"torch._utils", "_rebuild_device_tensor_from_numpy",
     GlobalKind::kRebuildDeviceTensorFromNumpy},
    {"torch._tensor", "_rebuild_from_type", GlobalKind::kRebuildFromType},
    {"torch._tensor", "_rebuild_from_type_v2", GlobalKind::kRebuildFromTypeV2},
    {"torch.storage", "TypedStorage", GlobalKind::kTypedStorage},
    {"torch.storage", "UntypedStorage", GlobalKind::kUntypedStorage},
    {"torch", "per_tensor_affine", GlobalKind::kPerTensorAffine},
    {"torch", "per_tensor_symmetric", GlobalKind::kPerTensorSymmetric},
    {"torch", "per_channel_affine", GlobalKind::kPerChannelAffine},
    {"torch", "per_channel_symmetric", GlobalKind::kPerChannelSymmetric},
    {"torch", "per_channel_affine_float_qparams",
     GlobalKind::kPerChannelAffineFloatQParams},
};

constexpr Row kTorchScriptRows[] = {
    {"torch.jit._pickle", "build_intlist", GlobalKind::kBuildIntList},
    {"torch.jit._pickle", "build_doublelist", GlobalKind::kBuildDoubleList},
    {"torch.jit._pickle", "build_boollist", GlobalKind::kBuildBoolList},
    {"torch.jit._pickle", "build_tensorlist", GlobalKind::kBuildTensorList},
    {"torch.jit._pickle", "build_tensor_from_id",
     GlobalKind::kBuildTensorFromId},
    {"torch.jit._pickle", "restore_type_tag", GlobalKind::kRestoreTypeTag},
};

// Classes of torch.distributed over its versions, and of DeepSpeed.
constexpr Row kProcessRows[] = {
    {"torch.distributed.tensor", "DTensor", GlobalKind::kProcessClass},
    {"torch.distributed.tensor._dtensor_spec", "DTensorSpec",
     GlobalKind::kProcessClass},
    {"torch.distributed.tensor._dtensor_spec", "ShardOrderEntry",
     GlobalKind::kProcessClass},
    {"torch.distributed.tensor._dtensor_spec", "TensorMeta",
     GlobalKind::kProcessClass},
    {"torch.distributed.tensor.placement_types", "Partial",
     GlobalKind::kProcessClass},
    {"torch.distributed.tensor.placement_types", "Replicate",
     GlobalKind::kProcessClass},
    {"torch.distributed.tensor.placement_types", "Shard",
     GlobalKind::kProcessClass},
    {"torch.distributed.tensor.placement_types", "_StridedShard",
     GlobalKind::kProcessClass},
    {"torch.distributed.device_mesh", "DeviceMesh", GlobalKind::kProcessClass},
    {"torch.distributed._mesh_layout", "_FlatLayout",
     GlobalKind::kProcessClass},
    {"torch.distributed._mesh_layout", "_MeshLayout",
     GlobalKind::kProcessClass},
    // Before torch 2.5.
    {"torch.distributed._tensor.api", "DTensor", GlobalKind::kProcessClass},
    {"torch.distributed._tensor.placement_types", "DTensorSpec",
     GlobalKind::kProcessClass},
    {"torch.distributed._tensor.placement_types", "TensorMeta",
     GlobalKind::kProcessClass},
    {"torch.distributed._tensor.placement_types", "_Partial",
     GlobalKind::kProcessClass},
    {"torch.distributed._tensor.placement_types", "Replicate",
     GlobalKind::kProcessClass},
    {"torch.distributed._tensor.placement_types", "Shard",
     GlobalKind::kProcessClass},
    // FSDP1.
    {"torch.distributed._shard.sharded_tensor.api", "ShardedTensor",
     GlobalKind::kProcessClass},
    {"torch.distributed._shard.sharded_tensor.shard", "Shard",
     GlobalKind::kProcessClass},
    {"torch.distributed._shard.metadata", "ShardMetadata",
     GlobalKind::kProcessClass},
    {"torch.distributed._shard.sharded_tensor.metadata",
     "ShardedTensorMetadata", GlobalKind::kProcessClass},
    {"torch.distributed._shard.sharded_tensor.metadata", "TensorProperties",
     GlobalKind::kProcessClass},
    {"torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING",
     GlobalKind::kProcessEnum},
    {"torch.distributed._shard.sharding_spec.api", "EnumerableShardingSpec",
     GlobalKind::kProcessClass},
    {"torch.distributed._shard.sharding_spec.chunk_sharding_spec",
     "ChunkShardingSpec", GlobalKind::kProcessClass},
    {"torch.distributed.remote_device", "_remote_device",
     GlobalKind::kProcessClass},
    {"builtins", "getattr", GlobalKind::kProcessAttribute},
    // DeepSpeed.
    {"deepspeed.runtime.fp16.loss_scaler", "LossScaler",
     GlobalKind::kProcessClass},
    {"deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler",
     GlobalKind::kProcessClass},
    {"deepspeed.runtime.zero.config", "ZeroStageEnum",
     GlobalKind::kProcessEnum},
    {"deepspeed.utils.tensor_fragment", "fragment_address",
     GlobalKind::kProcessClass},
};

// Python 3.11 pickles the members of some enumerations by their names.
constexpr Row kProcessAttributes[] = {
    {"ShardedTensor", "ProcessGroupState", GlobalKind::kProcessClass},
    {"MEM_FORMAT_ENCODING", "TORCH_CONTIGUOUS_FORMAT",
     GlobalKind::kProcessEnum},
    {"MEM_FORMAT_ENCODING", "TORCH_CHANNELS_LAST", GlobalKind::kProcessEnum},
    {"MEM_FORMAT_ENCODING", "TORCH_PRESERVE_FORMAT", GlobalKind::kProcessEnum},
};

// Which names besides the storage class torch has for a dtype.
bool HasCudaStorage(DTypeKind kind) { return kind != DTypeKind::kQuantized; }
bool HasTensorType(DTypeKind kind) {
  return HasCudaStorage(kind) && kind != DTypeKind::kComplex;
}
bool HasSparseTensorType(DTypeKind kind) {
  return HasTensorType(kind) && kind != DTypeKind::kBool;
}

constexpr uint16_t Id(GlobalKind kind, unsigned detail = 0,
                      bool sparse_or_signed = false, bool cuda = false) {
  return static_cast<uint16_t>(static_cast<unsigned>(kind) | detail << 8 |
                               (sparse_or_signed ? 0x4000U : 0U) |
                               (cuda ? 0x8000U : 0U));
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.ends_with(end) && text.size() > end.size();
}

// Looks up names like torch.FloatStorage, torch.cuda.sparse.HalfTensor,
// torch.float32, torch.int4.
uint16_t FindTyped(std::string_view module, std::string_view name) {
  const bool plain = module == "torch";
  const bool cuda = module == "torch.cuda" || module == "torch.cuda.sparse";
  const bool sparse = module == "torch.sparse" || module == "torch.cuda.sparse";
  if (!plain && !cuda && !sparse) return Global::kUnknown;

  const bool storage = EndsWith(name, "Storage");
  const bool tensor = EndsWith(name, "Tensor");
  if (storage || tensor) {
    const std::string_view word =
        name.substr(0, name.size() - (tensor ? 6 : 7));
    for (const DTypeInfo& row : AllDTypes()) {
      if (!row.storage_class.starts_with(word) ||
          row.storage_class.substr(word.size()) != "Storage") {
        continue;
      }
      const auto dtype = static_cast<unsigned>(row.dtype);
      if (tensor &&
          (sparse ? HasSparseTensorType(row.kind) : HasTensorType(row.kind))) {
        return Id(GlobalKind::kLegacyTensor, dtype, sparse, cuda);
      }
      if (storage && plain) return Id(GlobalKind::kStorage, dtype);
      if (storage && cuda && !sparse && HasCudaStorage(row.kind)) {
        return Id(GlobalKind::kCudaStorage, dtype);
      }
    }
    return Global::kUnknown;
  }
  if (!plain) return Global::kUnknown;
  if (const auto dtype = DTypeFromTorchName(name)) {
    return Id(GlobalKind::kDType, static_cast<unsigned>(*dtype));
  }
  return Global::kUnknown;
}

bool IsNeverAllowed(std::string_view module) {
  return module == "sys" || module == "os" || module == "posix" ||
         module == "nt";
}

struct Rename {
  std::string_view from_module;
  std::string_view from_name;  // Empty for all other names of the module.
  std::string_view to_module;
  std::string_view to_name;
};

// Python's own table for Python 2 pickles (_compat_pickle), single names before
// whole modules; and one rename of PyTorch.
constexpr Rename kRenames[] = {
    {"__builtin__", "xrange", "builtins", "range"},
    {"__builtin__", "reduce", "functools", "reduce"},
    {"__builtin__", "intern", "sys", "intern"},
    {"__builtin__", "unichr", "builtins", "chr"},
    {"__builtin__", "unicode", "builtins", "str"},
    {"__builtin__", "basestring", "builtins", "str"},
    {"__builtin__", "long", "builtins", "int"},
    {"__builtin__", "", "builtins", ""},
    {"exceptions", "StandardError", "builtins", "Exception"},
    {"exceptions", "", "builtins", ""},
    {"itertools", "izip", "builtins", "zip"},
    {"itertools", "imap", "builtins", "map"},
    {"itertools", "ifilter", "builtins", "filter"},
    {"itertools", "ifilterfalse", "itertools", "filterfalse"},
    {"itertools", "izip_longest", "itertools", "zip_longest"},
    {"UserDict", "IterableUserDict", "collections", "UserDict"},
    {"UserDict", "", "collections", ""},
    {"UserList", "", "collections", ""},
    {"UserString", "", "collections", ""},
    {"_socket", "fromfd", "socket", "fromfd"},
    {"socket", "_socketobject", "socket", "SocketType"},
    {"_multiprocessing", "Connection", "multiprocessing.connection",
     "Connection"},
    {"multiprocessing.process", "Process", "multiprocessing.context",
     "Process"},
    {"multiprocessing.forking", "Popen", "multiprocessing.popen_fork", "Popen"},
    {"urllib", "ContentTooShortError", "urllib.error", "ContentTooShortError"},
    {"urllib", "getproxies", "urllib.request", "getproxies"},
    {"urllib", "pathname2url", "urllib.request", "pathname2url"},
    {"urllib", "quote_plus", "urllib.parse", "quote_plus"},
    {"urllib", "quote", "urllib.parse", "quote"},
    {"urllib", "unquote_plus", "urllib.parse", "unquote_plus"},
    {"urllib", "unquote", "urllib.parse", "unquote"},
    {"urllib", "url2pathname", "urllib.request", "url2pathname"},
    {"urllib", "urlcleanup", "urllib.request", "urlcleanup"},
    {"urllib", "urlencode", "urllib.parse", "urlencode"},
    {"urllib", "urlopen", "urllib.request", "urlopen"},
    {"urllib", "urlretrieve", "urllib.request", "urlretrieve"},
    {"urllib2", "HTTPError", "urllib.error", "HTTPError"},
    {"urllib2", "URLError", "urllib.error", "URLError"},
    {"urllib2", "", "urllib.request", ""},
    {"copy_reg", "", "copyreg", ""},
    {"cPickle", "", "pickle", ""},
    {"commands", "", "subprocess", ""},
    {"_abcoll", "", "collections.abc", ""},
    {"Queue", "", "queue", ""},
    {"SocketServer", "", "socketserver", ""},
    {"ConfigParser", "", "configparser", ""},
    {"repr", "", "reprlib", ""},
    {"StringIO", "", "io", ""},
    {"cStringIO", "", "io", ""},
    {"_winreg", "", "winreg", ""},
    {"thread", "", "_thread", ""},
    {"httplib", "", "http.client", ""},
    {"HTMLParser", "", "html.parser", ""},
    {"htmlentitydefs", "", "html.entities", ""},
    {"Cookie", "", "http.cookies", ""},
    {"cookielib", "", "http.cookiejar", ""},
    {"BaseHTTPServer", "", "http.server", ""},
    {"SimpleHTTPServer", "", "http.server", ""},
    {"CGIHTTPServer", "", "http.server", ""},
    {"xmlrpclib", "", "xmlrpc.client", ""},
    {"SimpleXMLRPCServer", "", "xmlrpc.server", ""},
    {"DocXMLRPCServer", "", "xmlrpc.server", ""},
    {"urlparse", "", "urllib.parse", ""},
    {"robotparser", "", "urllib.robotparser", ""},
    {"_elementtree", "", "xml.etree.ElementTree", ""},
    {"Tkinter", "", "tkinter", ""},
    {"torch.tensor", "", "torch._tensor", ""},
};

}  // namespace

GlobalName RenameGlobal(std::string_view module, std::string_view name) {
  for (const Rename& row : kRenames) {
    if (row.from_module != module) continue;
    if (row.from_name.empty()) return {row.to_module, name};
    if (row.from_name == name) return {row.to_module, row.to_name};
  }
  return {module, name};
}

std::string_view ImportThatAllows(std::string_view module) {
  constexpr std::string_view kTensor = "torch.distributed.tensor";
  const bool needs = module.starts_with(kTensor) ||
                     module == "torch.distributed.device_mesh" ||
                     module == "torch.distributed._mesh_layout";
  return needs ? kTensor : "";
}

bool IsProcessAttribute(const Global& of, std::string_view name) {
  const GlobalKind kind = KindOf(of);
  if (kind != GlobalKind::kProcessClass && kind != GlobalKind::kProcessEnum) {
    return false;
  }
  return std::ranges::any_of(kProcessAttributes, [&](const Row& row) {
    return row.module == of.name && row.name == name;
  });
}

GlobalTable::Match GlobalTable::Find(std::string_view module,
                                     std::string_view name) const {
  if (IsNeverAllowed(module)) return {};
  for (const Row& row : kRows) {
    if (row.name == name && row.module == module) return {Id(row.kind), true};
  }
  if (const uint16_t id = FindTyped(module, name); id != Global::kUnknown) {
    return {id, true};
  }
  if (torch_script_) {
    for (const Row& row : kTorchScriptRows) {
      if (row.name == name && row.module == module) return {Id(row.kind), true};
    }
    if (module == "__torch__" || module.starts_with("__torch__.")) {
      return {Id(GlobalKind::kScriptClass), true};
    }
  }
  if (processes_) {
    for (const Row& row : kProcessRows) {
      if (row.name == name && row.module == module) return {Id(row.kind), true};
    }
  }
  if (!also_.empty()) {
    std::string full(module);
    full += '.';
    full += name;
    if (also_.contains(full)) return {Global::kUnknown, true};
  }
  return {};
}

}  // namespace haulway
