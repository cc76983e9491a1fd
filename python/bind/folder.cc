// Bindings for folders: lists of names, complete or by page, and how the files
// of a folder belong together.

#include "haulway/folder.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/path_text.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/loading.h"
#include "haulway/open.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

nb::list PathList(const std::vector<std::string>& names) {
  nb::list list;
  for (const std::string& name : names) list.append(PathText(name));
  return list;
}

// Wraps a function that lists a folder for Python.
template <class Lister>
auto Listing(Lister list) {
  return [list](const nb::str& path, nb::dict remote) {
    const std::string folder = PathBytes(path);
    const RemoteOptions reached = RemoteOptionsOf(std::move(remote));
    return PathList(Minding([&] { return list(folder, reached); }));
  };
}

}  // namespace

void BindFolder(nb::module_& module) {
  module.def("is_folder",
             [](const nb::str& path) { return IsFolder(PathBytes(path)); });
  module.def("has_folders",
             [](const nb::str& path) { return HasFolders(PathBytes(path)); });
  module.def("local_path", [](const nb::str& name) -> nb::object {
    const auto path = LocalPath(PathBytes(name));
    return path.has_value() ? nb::object(PathText(*path)) : nb::none();
  });
  module.def("list_files", Listing(ListFiles));
  module.def("list_files_to_verify", Listing(ListFilesToVerify));

  nb::class_<FolderFiles>(module, "FolderFiles")
      .def("__init__",
           [](FolderFiles* self, nb::dict remote) {
             new (self) FolderFiles(RemoteOptionsOf(std::move(remote)));
           })
      .def("note", [](FolderFiles& self,
                      const nb::str& name) { self.Note(PathBytes(name)); })
      .def("folders",
           [](const FolderFiles& self) { return PathList(self.Folders()); })
      .def("is_part",
           [](const FolderFiles& self, const nb::str& name) {
             return self.IsPart(PathBytes(name));
           })
      .def("read_indexes",
           [](FolderFiles& self) {
             Minding([&]() -> Result<bool> {
               self.ReadIndexes();
               return true;
             });
           })
      .def("is_checkpoint", [](const FolderFiles& self, const nb::str& name) {
        return self.IsCheckpoint(PathBytes(name));
      });

  // An iterator over lists of names, one per page.
  nb::class_<FolderPages>(module, "FolderPages")
      .def("__iter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__next__", [](FolderPages& self) {
        const auto names = Minding([&] { return self.Next(); });
        if (names.empty()) throw nb::stop_iteration();
        return PathList(names);
      });
  module.def("open_folder", [](const nb::str& path, nb::dict remote) {
    const std::string folder = PathBytes(path);
    const RemoteOptions reached = RemoteOptionsOf(std::move(remote));
    return std::shared_ptr<FolderPages>(
        Minding([&] { return OpenFolder(folder, reached); }));
  });
}

}  // namespace haulway::python
