#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <numeric>
#include <thread>

#include "haulway/worker.h"
#include "testing/shorthands.h"

namespace haulway {
namespace {

constexpr uint32_t kConsumers = 3;
constexpr uint64_t kItems = 400;

// Starts a consumer in its own process, which checks what it receives.
// `stop_at`: the item at which the consumer is killed; 0: at the end.
pid_t Consume(Arena& arena, Channel& channel, uint32_t number,
              uint64_t stop_at) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  const auto reader = std::move(arena.OpenReader(number)).value();
  const auto receiver = std::move(channel.OpenReceiver(-1)).value();
  const uint32_t epoch = receiver->StartPass();
  for (uint64_t expected = 0;; ++expected) {
    const auto message = receiver->Receive(20 * test::kSecond);
    if (!message.ok() || message->epoch != epoch) ::_exit(1);
    if (message->kind == MessageKind::kFinished) {
      ::_exit(expected == kItems ? 0 : 2);
    }
    ArenaRange range;
    std::memcpy(&range, message->bytes.data(), sizeof(range));
    const auto claim = reader->Claim(range.unit);
    if (!claim.ok()) ::_exit(3);
    if (expected + 1 == stop_at) ::raise(SIGKILL);
    const Buffer view = reader->View(*claim, range.offset, range.bytes).value();
    for (const std::byte byte : view.bytes()) {
      if (byte != std::byte(expected % 256)) ::_exit(4);
    }
  }
}

TEST(Broadcast, EachConsumerGetsEachItemUntilItIsKilled) {
  ArenaOptions options;
  options.max_bytes = 64 << 10;
  options.consumers = kConsumers;
  const auto arena = Arena::Create(options).value();
  const std::shared_ptr<ArenaWriter> writer =
      std::move(arena->OpenWriter()).value();
  std::vector<std::unique_ptr<ChannelSender>> senders;
  std::vector<pid_t> consumers;
  for (uint32_t i = 0; i < kConsumers; ++i) {
    const auto channel = Channel::Create({}).value();
    senders.push_back(std::move(channel->OpenSender(kPeerThatOpens)).value());
    consumers.push_back(Consume(*arena, *channel, i, i == 1 ? 50 : 0));
  }
  Broadcast broadcast(std::move(senders), writer);
  const uint32_t epoch = broadcast.WaitForPass(0).value();
  for (uint64_t n = 0; n < kItems; ++n) {
    const std::vector<std::byte> payload(10'000, std::byte(n % 256));
    while (!writer->Begin(test::kSecond / 50).ok()) {
      ASSERT_TRUE(broadcast.LookAround());
    }
    Result<ArenaRange> range = writer->Write(payload, test::kSecond / 50);
    while (!range.ok()) {
      ASSERT_TRUE(broadcast.LookAround());
      range = writer->Write(payload, test::kSecond / 50);
    }
    const Audience audience = broadcast.In(epoch);
    ASSERT_TRUE(writer->Commit(audience).ok());
    const std::span<const std::byte> part =
        std::as_bytes(std::span<const ArenaRange>(&*range, 1));
    ASSERT_TRUE(broadcast
                    .Send(MessageKind::kItem, epoch, audience, {&part, 1},
                          {&range->unit, 1})
                    .value());
  }
  EXPECT_EQ(broadcast.In(epoch), 0b101u);
  EXPECT_TRUE(
      broadcast.Send(MessageKind::kFinished, epoch, 0b101, {}, {}).value());
  for (uint32_t i = 0; i < kConsumers; ++i) {
    int status = 0;
    ASSERT_EQ(::waitpid(consumers[i], &status, 0), consumers[i]);
    if (i == 1) {
      EXPECT_TRUE(WIFSIGNALED(status));
    } else {
      EXPECT_EQ(WEXITSTATUS(status), 0);
    }
  }
  EXPECT_FALSE(broadcast.LookAround());
  EXPECT_EQ(broadcast.WaitForPass(epoch).status().code(), Code::kCancelled);
  // All units are free, including those that the killed consumer held.
  ASSERT_TRUE(writer->Begin(0).ok());
  EXPECT_TRUE(writer->Reserve(64 << 10, 0).ok());
}

// A pass that begins while the producer looks for consumers that are behind is
// noticed.
TEST(Broadcast, MissesNoPassThatBeginsWhileItLooks) {
  constexpr uint32_t kPasses = 30'000;
  std::vector<std::unique_ptr<ChannelSender>> senders;
  std::vector<std::unique_ptr<ChannelReceiver>> receivers;
  for (uint32_t i = 0; i < kConsumers; ++i) {
    const auto channel = Channel::Create({}).value();
    senders.push_back(std::move(channel->OpenSender(kPeerThatOpens)).value());
    receivers.push_back(std::move(channel->OpenReceiver(-1)).value());
  }
  Broadcast broadcast(std::move(senders), nullptr);
  std::thread producer([&broadcast] {
    uint32_t epoch = 0;
    while (true) {
      const Result<uint32_t> next = broadcast.WaitForPass(epoch);
      if (!next.ok()) return;
      epoch = *next;
      (void)broadcast.Send(MessageKind::kFinished, epoch, kEveryone, {}, {});
    }
  });
  for (uint32_t pass = 1; pass <= kPasses; ++pass) {
    for (const auto& receiver : receivers) {
      // Varies the delay, so that each moment of the producer's check is hit.
      for (uint32_t i = pass * 7919 % 8192; i > 0; --i) {
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
      ASSERT_EQ(receiver->StartPass(), pass);
    }
    bool have_all = true;
    for (const auto& receiver : receivers) {
      have_all = have_all && receiver->Receive(5 * test::kSecond).ok();
    }
    EXPECT_TRUE(have_all) << "in pass " << pass;
    if (!have_all) break;
  }
  for (const auto& receiver : receivers) receiver->Abort();
  producer.join();
}

TEST(Broadcast, TakesBackWhatAConsumerThatLeftHasNotTaken) {
  ArenaOptions options;
  options.kind = ArenaKind::kPool;
  options.unit_bytes = 64;
  options.max_units = 3;
  const auto arena = Arena::Create(options).value();
  const std::shared_ptr<ArenaWriter> writer =
      std::move(arena->OpenWriter()).value();
  const auto channel = Channel::Create({}).value();
  std::vector<std::unique_ptr<ChannelSender>> senders;
  senders.push_back(std::move(channel->OpenSender(kPeerThatOpens)).value());
  Broadcast broadcast(std::move(senders), writer);
  const auto receiver = std::move(channel->OpenReceiver(-1)).value();
  const auto reader = std::move(arena->OpenReader()).value();
  const uint32_t epoch = receiver->StartPass();
  ASSERT_EQ(broadcast.WaitForPass(0).value(), epoch);
  std::shared_ptr<const void> held;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(writer->Begin(0).ok());
    const UnitRef unit = writer->Commit().value();
    ASSERT_TRUE(
        broadcast.Send(MessageKind::kItem, epoch, 1, {}, {&unit, 1}).value());
    if (i == 0) {
      ASSERT_TRUE(receiver->Receive(0).ok());
      held = reader->Claim(unit).value();
    }
  }
  EXPECT_EQ(writer->Begin(0).code(), Code::kTimeout);
  receiver->Abort();
  EXPECT_FALSE(broadcast.LookAround());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(writer->Begin(0).ok());
    ASSERT_TRUE(writer->Commit(0b1).ok());
  }
  EXPECT_EQ(writer->Begin(0).code(), Code::kTimeout);
  held.reset();
  EXPECT_TRUE(writer->Begin(0).ok());
}

}  // namespace
}  // namespace haulway
