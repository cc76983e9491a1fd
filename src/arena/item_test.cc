#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "haulway/items.h"
#include "haulway/worker.h"
#include "testing/shorthands.h"

namespace haulway {
namespace {

Item SampleItem() {
  Item number;
  number.kind = Item::Kind::kFloat;
  number.number = 2.5;
  Item bytes;
  bytes.kind = Item::Kind::kBytes;
  bytes.part = 1;
  Item ids = Item::Dict({});
  ids.keys.push_back(Item::Integer(-7));
  ids.items.push_back(Item());
  return Item::Dict({{"x", Item::Tensor(0, DType::kF32, {10, 20})},
                     {"label", Item::Integer(-1)},
                     {"name", Item::Text("a \xc3\xa9")},
                     {"rest", Item::List({number, bytes})},
                     {"ids", ids}});
}

std::vector<std::byte> Encoded(const Item& item) {
  std::vector<std::byte> body;
  AppendItem(item, &body);
  return body;
}

TEST(Item, ComesBackAsItWas) {
  const uint64_t sizes[] = {800, 5};
  const std::vector<std::byte> body = Encoded(SampleItem());
  const Item item = ParseItem(body, sizes).value();
  EXPECT_EQ(Encoded(item), body);
  EXPECT_EQ(item.Find("label")->integer, -1);
  EXPECT_EQ(item.Find("name")->text, "a \xc3\xa9");
  EXPECT_THAT(item.Find("x")->tensor.strides, testing::ElementsAre(20, 1));
  EXPECT_EQ(item.Find("rest")->items[0].number, 2.5);
  EXPECT_EQ(item.Find("ids")->keys[0].integer, -7);
  EXPECT_EQ(item.Find("none"), nullptr);
}

TEST(Item, TensorsLieWithinTheirParts) {
  const auto parse = [](const ItemTensor& tensor, uint64_t bytes) {
    Item item;
    item.kind = Item::Kind::kTensor;
    item.tensor = tensor;
    return ParseItem(Encoded(item), {&bytes, 1}).status().code();
  };
  ItemTensor tensor = Item::Tensor(0, DType::kF32, {10, 20}).tensor;
  EXPECT_EQ(parse(tensor, 800), Code::kOk);
  EXPECT_EQ(parse(tensor, 799), Code::kCorrupt);
  tensor.offset = 8;
  EXPECT_EQ(parse(tensor, 808), Code::kOk);
  EXPECT_EQ(parse(tensor, 807), Code::kCorrupt);
  tensor.offset = UINT64_MAX;
  EXPECT_EQ(parse(tensor, 800), Code::kCorrupt);
  tensor.offset = 0;
  tensor.strides = {UINT64_MAX, UINT64_MAX};
  EXPECT_EQ(parse(tensor, 800), Code::kCorrupt);
  tensor.strides = {0, 1};
  EXPECT_EQ(parse(tensor, 80), Code::kOk);
  tensor.shape = {UINT64_MAX, 20};
  EXPECT_EQ(parse(tensor, 80), Code::kCorrupt);
  tensor.shape = {0, UINT64_MAX};
  EXPECT_EQ(parse(tensor, 0), Code::kOk);
  tensor.part = 1;
  EXPECT_EQ(parse(tensor, 80), Code::kCorrupt);
}

TEST(Item, EveryTruncationIsAnError) {
  const uint64_t sizes[] = {800, 5};
  const std::vector<std::byte> body = Encoded(SampleItem());
  for (size_t length = 0; length < body.size(); ++length) {
    const Code code =
        ParseItem(std::span(body).first(length), sizes).status().code();
    EXPECT_EQ(code, Code::kTruncated) << length;
  }
  std::vector<std::byte> longer = body;
  longer.push_back(std::byte{0});
  EXPECT_EQ(ParseItem(longer, sizes).status().code(), Code::kCorrupt);
}

TEST(Item, EveryFlippedBitIsAnItemOrAnError) {
  const uint64_t sizes[] = {800, 5};
  std::vector<std::byte> body = Encoded(SampleItem());
  for (size_t bit = 0; bit < body.size() * 8; ++bit) {
    body[bit / 8] ^= std::byte(1 << bit % 8);
    const Result<Item> item = ParseItem(body, sizes);
    if (item.ok()) {
      EXPECT_EQ(Encoded(*item), body);
    }
    body[bit / 8] ^= std::byte(1 << bit % 8);
  }
}

TEST(Item, DepthAndCountAreBounded) {
  Item deep;
  for (int i = 0; i < 100; ++i) deep = Item::List({deep});
  EXPECT_TRUE(ParseItem(Encoded(deep), {}).ok());
  deep = Item::List({deep});
  EXPECT_EQ(ParseItem(Encoded(deep), {}).status().code(), Code::kLimit);
  Item wide = Item::List(std::vector<Item>(999'999));
  EXPECT_TRUE(ParseItem(Encoded(wide), {}).ok());
  wide.items.emplace_back();
  EXPECT_EQ(ParseItem(Encoded(wide), {}).status().code(), Code::kLimit);
  // A count alone allocates nothing.
  const std::byte many[] = {std::byte{7}, std::byte{0xff}, std::byte{0xff},
                            std::byte{0xff}, std::byte{0xff}};
  EXPECT_EQ(ParseItem(many, {}).status().code(), Code::kTruncated);
}

struct ItemEnds {
  explicit ItemEnds(uint64_t arena_bytes) {
    ArenaOptions options;
    options.max_bytes = arena_bytes;
    arena = Arena::Create(options).value();
    writer = std::move(arena->OpenWriter()).value();
    reader = std::move(arena->OpenReader()).value();
    channel = Channel::Create({}).value();
    sender = std::move(channel->OpenSender(-1)).value();
    receiver = std::move(channel->OpenReceiver(-1)).value();
    epoch = receiver->StartPass();
  }
  std::shared_ptr<Arena> arena;
  std::unique_ptr<ArenaWriter> writer;
  std::unique_ptr<ArenaReader> reader;
  std::shared_ptr<Channel> channel;
  std::unique_ptr<ChannelSender> sender;
  std::unique_ptr<ChannelReceiver> receiver;
  uint32_t epoch = 0;
};

TEST(ItemTransfer, LargePartsLieInTheArenaAndSmallOnesGoAlong) {
  ItemEnds ends(1 << 20);
  const std::vector<std::byte> large(100'000, std::byte{3});
  const std::vector<std::byte> small(50, std::byte{4});
  const std::span<const std::byte> parts[] = {large, small};
  const Item item =
      Item::Dict({{"large", Item::Tensor(0, DType::kU8, {100, 1000})},
                  {"small", Item::Tensor(1, DType::kI16, {25})}});
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(
        SendItem(*ends.sender, ends.writer.get(), ends.epoch, item, parts)
            .value());
    const Message message = ends.receiver->Receive(test::kSecond).value();
    const ReceivedItem received = OpenItem(message, ends.reader.get()).value();
    EXPECT_THAT(received.parts[0].bytes(), testing::Each(std::byte{3}));
    EXPECT_THAT(received.parts[1].bytes(), testing::ElementsAreArray(small));
    EXPECT_EQ(ends.arena->stats().used, 100'032u);
    EXPECT_EQ(OpenItem(message, nullptr).status().code(), Code::kCorrupt);
  }
  EXPECT_EQ(ends.arena->stats().fallbacks, 0u);
}

TEST(ItemTransfer, LoansAreNotCopied) {
  ItemEnds ends(1 << 20);
  const ArenaRange loan = ends.writer->Lend(10'000, 0).value();
  const std::span<std::byte> memory = ends.writer->At(loan);
  std::memset(memory.data(), 9, memory.size());
  const std::span<const std::byte> part = memory;
  ASSERT_TRUE(SendItem(*ends.sender, ends.writer.get(), ends.epoch,
                       Item::Tensor(0, DType::kU8, {10'000}), {&part, 1})
                  .value());
  ends.writer->DropLoan(loan.unit);
  ReceivedItem received =
      OpenItem(ends.receiver->Receive(test::kSecond).value(), ends.reader.get())
          .value();
  std::memset(memory.data(), 8, 1);
  EXPECT_EQ(received.parts[0].bytes()[0], std::byte{8});
  received = {};
  EXPECT_TRUE(ends.writer->Lend(1 << 20, 0).ok());
}

TEST(ItemTransfer, WhatHasNoRoomGoesAlong) {
  ItemEnds ends(4096);
  const std::vector<std::byte> large(100'000, std::byte{3});
  const std::span<const std::byte> part = large;
  ASSERT_TRUE(SendItem(*ends.sender, ends.writer.get(), ends.epoch,
                       Item::Tensor(0, DType::kU8, {100'000}), {&part, 1})
                  .value());
  const ReceivedItem received =
      OpenItem(ends.receiver->Receive(test::kSecond).value(), nullptr).value();
  EXPECT_THAT(received.parts[0].bytes(), testing::ElementsAreArray(large));
  EXPECT_EQ(ends.arena->stats().fallbacks, 1u);
  EXPECT_FALSE(
      SendItem(*ends.sender, nullptr, ends.epoch + 1, Item(), {}).value());
}

TEST(ItemTransfer, PicklesAreRefusedAndGivenBack) {
  ItemEnds ends(1 << 16);
  ASSERT_TRUE(ends.writer->Begin(0).ok());
  Envelope envelope;
  envelope.parts.push_back({ends.writer->Reserve(100, 0).value(), 0});
  ASSERT_TRUE(ends.writer->Commit().ok());
  std::vector<std::byte> head;
  AppendEnvelopeHead(envelope, &head);
  const std::span<const std::byte> part = head;
  ASSERT_TRUE(
      ends.sender->Send(MessageKind::kItem, ends.epoch, {&part, 1}).ok());
  const Message message = ends.receiver->Receive(test::kSecond).value();
  EXPECT_EQ(OpenItem(message, ends.reader.get()).status().code(),
            Code::kUnsafe);
  ASSERT_TRUE(ends.writer->Begin(0).ok());
  EXPECT_TRUE(ends.writer->Reserve(1 << 16, 0).ok());
}

}  // namespace
}  // namespace haulway
