#include "haulway/publish.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "haulway/items.h"
#include "publish/publication_file.h"

namespace haulway {
namespace {

using ::testing::HasSubstr;

// Returns a name that no other program uses.
std::string NameOf(std::string_view test) {
  return fmt::format("cc-{}-{}", ::getpid(), test);
}

std::unique_ptr<Publisher> OpenPublisher(const std::string& name) {
  auto publisher = Publisher::Open(name);
  EXPECT_TRUE(publisher.ok()) << publisher.status().message();
  return std::move(publisher).value();
}

std::vector<std::byte> Filled(size_t bytes, int value) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
}

// Returns the content of a version's parts.
std::vector<std::vector<std::byte>> PartsOf(const PublishedVersion& taken) {
  const auto envelope = ParseEnvelope(taken.message.bytes());
  EXPECT_TRUE(envelope.ok()) << envelope.status().message();
  std::vector<std::vector<std::byte>> parts;
  for (const EnvelopePart& part : envelope->parts) {
    EXPECT_TRUE(part.is_inline());
    const auto bytes =
        envelope->inlined.subspan(part.range.offset, part.range.bytes);
    if (!bytes.empty()) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % 64, 0U);
    }
    parts.emplace_back(bytes.begin(), bytes.end());
  }
  return parts;
}

TEST(Publisher, ShowsVersionsOneAfterAnother) {
  const std::string name = NameOf("versions");
  const auto publisher = OpenPublisher(name);
  const auto subscriber = Subscriber::Open(name);
  ASSERT_TRUE(subscriber.ok());
  EXPECT_EQ((*subscriber)->Take(0, 0).status().code(), Code::kTimeout);
  for (int i = 1; i < 20; ++i) {
    const auto large = Filled(100'000, i);
    const auto small = Filled(7, i);
    const PublishedPart parts[] = {{large}, {}, {small}};
    const auto body = Filled(i, 1);
    EXPECT_EQ(publisher->Publish(body, parts, 1).value(),
              static_cast<uint64_t>(i));
    const auto taken = (*subscriber)->Take(i - 1, 0);
    ASSERT_TRUE(taken.ok()) << taken.status().message();
    EXPECT_EQ(taken->version, static_cast<uint64_t>(i));
    const std::vector<std::vector<std::byte>> expected = {large, {}, small};
    EXPECT_EQ(PartsOf(*taken), expected);
    EXPECT_EQ(ParseEnvelope(taken->message.bytes())->body.size(), body.size());
  }
}

TEST(Publisher, LeavesWhatIsHeldAlone) {
  const std::string name = NameOf("held");
  const auto publisher = OpenPublisher(name);
  std::vector<PublishedVersion> held;
  const auto subscriber = Subscriber::Open(name);
  ASSERT_TRUE(subscriber.ok());
  for (int i = 1; i <= 10; ++i) {
    const auto bytes = Filled(50'000, i);
    const PublishedPart parts[] = {{bytes}};
    ASSERT_TRUE(publisher->Publish({}, parts, 1).ok());
    held.push_back((*subscriber)->Take(0, 0).value());
  }
  for (int i = 1; i <= 10; ++i) {
    EXPECT_EQ(PartsOf(held[i - 1])[0], Filled(50'000, i));
  }
}

TEST(Publisher, CopiesNothingThatLiesInItsMemory) {
  const std::string name = NameOf("in-place");
  const auto publisher = OpenPublisher(name);
  const auto subscriber = Subscriber::Open(name);
  ASSERT_TRUE(subscriber.ok());
  for (int i = 1; i < 6; ++i) {
    Buffer memory = publisher->Reserve(100'000).value();
    EXPECT_THAT(std::string(publisher->Reserve(1).status().message()),
                HasSubstr("is in use already"));
    std::memset(memory.mutable_bytes().data(), i, memory.size());
    const auto beside = Filled(1000, i + 100);
    const PublishedPart parts[] = {{memory.bytes().first(64'000)},
                                   {beside},
                                   {memory.bytes().subspan(64'000, 64)}};
    ASSERT_TRUE(publisher->Publish(Filled(5000, 1), parts, 1).ok());
    memory = Buffer();
    const auto taken = (*subscriber)->Take(0, 0).value();
    const std::vector<std::vector<std::byte>> expected = {
        Filled(64'000, i), beside, Filled(64, i)};
    EXPECT_EQ(PartsOf(taken), expected);
  }
}

TEST(Publisher, RefusesASecondOne) {
  const std::string name = NameOf("second");
  const auto publisher = OpenPublisher(name);
  const auto second = Publisher::Open(name);
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(fmt::format("by process {}", ::getpid())));
  publisher->Close();
  EXPECT_TRUE(Publisher::Open(name).ok());
  EXPECT_EQ(publisher->Publish({}, {}, 1).status().code(),
            Code::kInvalidArgument);
}

TEST(Publisher, GoesOnWhereItsPredecessorEnded) {
  const std::string name = NameOf("again");
  auto publisher = OpenPublisher(name);
  ASSERT_TRUE(publisher->Publish({}, {}, 1).ok());
  const auto subscriber = Subscriber::Open(name);
  ASSERT_TRUE(subscriber.ok());
  EXPECT_TRUE((*subscriber)->has_publisher());
  publisher.reset();
  EXPECT_FALSE((*subscriber)->has_publisher());
  publisher = OpenPublisher(name);
  EXPECT_EQ(publisher->Publish({}, {}, 1).value(), 2U);
  EXPECT_EQ((*subscriber)->Take(1, 0)->version, 2U);
}

TEST(Subscriber, FindsNothingUnderTheName) {
  EXPECT_EQ(Subscriber::Open(NameOf("none")).status().code(), Code::kNotFound);
}

TEST(Subscriber, RefusesPlacesThatAreNotInTheFile) {
  const std::string name = NameOf("corrupt");
  const auto publisher = OpenPublisher(name);
  ASSERT_TRUE(publisher->Publish(Filled(100, 1), {}, 1).ok());
  const auto subscriber = Subscriber::Open(name);
  ASSERT_TRUE(subscriber.ok());
  // Simulates a faulty process of this user.
  const auto file = publish::PublicationFile::Find(name, 0, true);
  ASSERT_TRUE(file.ok());
  publish::Header& header = (*file)->header();
  const uint64_t newest = header.newest.load();
  publish::Slot& slot = (*file)->slot(publish::SlotOf(newest));
  const uint64_t offset = slot.message_offset.load();
  for (const uint64_t wrong : {uint64_t{0}, UINT64_MAX, uint64_t{1} << 62}) {
    slot.message_offset.store(wrong);
    EXPECT_EQ((*subscriber)->Take(0, 0).status().code(), Code::kCorrupt);
  }
  slot.message_offset.store(offset);
  for (const uint64_t wrong : {uint64_t{0}, UINT64_MAX, uint64_t{1} << 40}) {
    slot.message_bytes.store(wrong);
    EXPECT_EQ((*subscriber)->Take(0, 0).status().code(), Code::kCorrupt);
  }
  header.newest.store(uint64_t{5} << publish::kSlotBits | 1023);
  EXPECT_EQ((*subscriber)->Take(0, 0).status().code(), Code::kCorrupt);
  header.magic = 0;
  EXPECT_EQ(Subscriber::Open(name).status().code(), Code::kCorrupt);
}

TEST(Publications, AreListed) {
  const std::string name = NameOf("listed");
  const auto publisher = OpenPublisher(name);
  const auto bytes = Filled(100'000, 1);
  const PublishedPart parts[] = {{bytes}};
  ASSERT_TRUE(publisher->Publish({}, parts, 1).ok());
  const auto one = Subscriber::Open(name);
  const auto other = Subscriber::Open(name);
  const auto all = ListPublications().value();
  const auto found = std::ranges::find(all, name, &PublicationFacts::name);
  ASSERT_NE(found, all.end());
  EXPECT_EQ(found->version, 1U);
  EXPECT_GE(found->bytes, bytes.size());
  EXPECT_GE(found->held_bytes, bytes.size());
  EXPECT_EQ(found->publisher, static_cast<uint32_t>(::getpid()));
  EXPECT_EQ(found->readers, 2U);
}

}  // namespace
}  // namespace haulway
