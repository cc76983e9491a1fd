// Recognises what servers send in place of an object: web pages, such as a
// login, and an object store's errors.

#pragma once

#include <string_view>

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// Fails with kIoError if a server sent a page although `name`, the object's or
// that of the file in which it is kept, is not the name of a page. Fails as
// reading does.
Status RefuseWebPage(const ByteSource& source, std::string_view name);

}  // namespace haulway
