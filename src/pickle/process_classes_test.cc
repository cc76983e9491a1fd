// The classes of torch.distributed are data, and nothing else.

#include <gtest/gtest.h>

#include <span>
#include <string>

#include "pickle/pickle_vm.h"

namespace haulway {
namespace {

Code CodeOf(const std::string& pickle, bool allows) {
  GlobalTable table;
  if (allows) table.AllowProcesses();
  PickleOptions options;
  options.globals = &table;
  TreeArena arena;
  return ParsePickle(std::as_bytes(std::span(pickle)), arena, options)
      .status()
      .code();
}

TEST(ProcessClasses, AreMadeForAStateAndNotCalled) {
  const std::string mesh = "ctorch.distributed.device_mesh\nDeviceMesh\n";
  const std::string made = mesh + ")\x81}b.";
  EXPECT_EQ(CodeOf(made, true), Code::kOk);
  EXPECT_EQ(CodeOf(made, false), Code::kUnsafe);
  EXPECT_EQ(CodeOf(mesh + ")R.", true), Code::kUnsafe);
  EXPECT_EQ(CodeOf("(" + mesh + "o.", true), Code::kUnsafe);
  EXPECT_EQ(CodeOf(mesh + ")}\x92.", true), Code::kOk);  // No keyword.
}

TEST(ProcessClasses, OnlyTheirOwnAttributesAreNames) {
  const std::string tensor =
      "ctorch.distributed._shard.sharded_tensor.api\nShardedTensor\n";
  const auto of = [](const std::string& from, const std::string& name) {
    return "c__builtin__\ngetattr\n" + from + "X" +
           std::string{static_cast<char>(name.size()), 0, 0, 0} + name +
           "\x86R";
  };
  EXPECT_EQ(CodeOf(of(tensor, "ProcessGroupState") + ")\x81}b.", true),
            Code::kOk);
  EXPECT_EQ(CodeOf(of(tensor, "ProcessGroupState") + ")R.", true),
            Code::kUnsafe);
  EXPECT_EQ(CodeOf(of(tensor, "ProcessGroupState") + ".", false),
            Code::kUnsafe);
  EXPECT_EQ(CodeOf(of(tensor, "__init__") + ".", true), Code::kUnsafe);
  EXPECT_EQ(CodeOf(of("cbuiltins\ndict\n", "fromkeys") + ".", true),
            Code::kUnsafe);
  EXPECT_EQ(CodeOf(of(of(tensor, "ProcessGroupState"), "x") + ".", true),
            Code::kUnsafe);
}

TEST(ProcessClasses, EnumerationsAreCalledAndNotMade) {
  const std::string stage = "cdeepspeed.runtime.zero.config\nZeroStageEnum\n";
  EXPECT_EQ(CodeOf("\x80\2" + stage + "K\3\x85R.", true), Code::kOk);
  EXPECT_EQ(CodeOf("\x80\2" + stage + ")\x81.", true), Code::kUnsafe);
}

}  // namespace
}  // namespace haulway
