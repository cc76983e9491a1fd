#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/format_registry.h"
#include "haulway/save.h"

namespace haulway {
namespace {

TEST(FormatToWrite, IsWhatTheEndingSaysWhateverItsCase) {
  EXPECT_EQ(*FormatToWrite("/m/a.pt"), Format::kTorch);
  EXPECT_EQ(*FormatToWrite("UP.SAFETENSORS"), Format::kSafetensors);
  EXPECT_EQ(*FormatToWrite("a.b.Tensors"), Format::kTensorizer);
  EXPECT_EQ(*FormatToWrite("a.NPZ"), Format::kNpz);
}

TEST(FormatToWrite, IsTorchWhereTheEndingMeansNothing) {
  for (const char* path :
       {"model", "a.npz/model", "x.v2", ".npz", "m.step12"}) {
    EXPECT_EQ(*FormatToWrite(path), Format::kTorch) << path;
  }
}

TEST(FormatToWrite, IsTensorizerForAPrefixOfRedis) {
  for (const char* uri :
       {"redis://h/m", "rediss://h:1/0/m.pt", "redis+unix:///s?prefix=m"}) {
    EXPECT_EQ(*FormatToWrite(uri), Format::kTensorizer) << uri;
    EXPECT_EQ(*FormatOfEnding(uri), Format::kTensorizer) << uri;
    EXPECT_TRUE(CheckEnding(uri, Format::kTensorizer).ok()) << uri;
  }
  EXPECT_EQ(*FormatToWrite("redis://h/?key=m"), Format::kTorch);
}

TEST(FormatOfEnding, RefusesOneThatMeansNothing) {
  EXPECT_EQ(*FormatOfEnding("a.ckpt"), Format::kTorch);
  EXPECT_EQ(FormatOfEnding("x.pkl").status().code(), Code::kUnsupported);
  const Status status = FormatOfEnding("m.step12").status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("expected one of .pt .pth .bin .ckpt "
                                   ".tensors .safetensors"));
}

TEST(FormatToWrite, EndingsOfFormatsThatAreNotWrittenAreRefused) {
  for (const char* path : {"a.ggml", "a.H5", "w.h5", "m.onnx",
                           "model.safetensors.index.json", "x.pkl"}) {
    EXPECT_EQ(FormatToWrite(path).status().code(), Code::kUnsupported) << path;
  }
}

TEST(CheckEnding, RefusesThatOfAnotherFormat) {
  for (const char* path : {"a.pt", "a.BIN", "a", "a.bak"}) {
    EXPECT_TRUE(CheckEnding(path, Format::kTorch).ok()) << path;
  }
  for (const char* path : {"a.safetensors", "a.Tensors", "a.gguf"}) {
    EXPECT_EQ(CheckEnding(path, Format::kTorch).code(), Code::kUnsupported);
  }
}

TEST(FormatToWrite, OnlyFormatsThatAreWrittenHaveAName) {
  EXPECT_EQ(*FormatToWriteByName("tensorizer"), Format::kTensorizer);
  for (const char* name : {"torch-tar", "hdf5", ""}) {
    EXPECT_EQ(FormatToWriteByName(name).status().code(), Code::kUnsupported);
  }
}

}  // namespace
}  // namespace haulway
