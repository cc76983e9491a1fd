#include "haulway/worker.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/posix.h"

namespace haulway {

namespace {

constexpr int kGraceMs = 1000;

// The whole life of the child.
Status Serve(Channel& channel, int parent, const Worker::Produce& produce) {
  HAULWAY_ASSIGN(auto sender, channel.OpenSender(parent));
  HAULWAY_TRY(sender->Send(MessageKind::kReady, 0, {}).status());
  uint32_t epoch = 0;
  while (true) {
    const Result<uint32_t> next = sender->WaitForPass(epoch);
    // Told to end, or nobody is left to tell.
    if (!next.ok()) return Status();
    epoch = *next;
    const Status made = produce(*sender, epoch);
    if (!made.ok()) {
      const std::span<const std::byte> text =
          std::as_bytes(std::span(made.message()));
      (void)sender->Send(MessageKind::kFailed, epoch, {&text, 1});
      return made;
    }
    HAULWAY_TRY(sender->Send(MessageKind::kFinished, epoch, {}).status());
  }
}

}  // namespace

Status EndWithPeer(int pidfd, int grace_ms, std::function<void()> on_death) {
  const auto watch = [pidfd, grace_ms, on_death = std::move(on_death)] {
    pollfd ended = {pidfd, POLLIN, 0};
    while (::poll(&ended, 1, -1) < 0 && errno == EINTR) {
    }
    if (on_death) on_death();
    (void)::poll(nullptr, 0, grace_ms);
    ::_exit(1);
  };
  try {
    std::thread(watch).detach();
  } catch (const std::system_error& error) {
    return Status::FromErrno(error.code().value(), "cannot start a thread");
  }
  return Status();
}

Result<std::unique_ptr<Worker>> Worker::Start(std::shared_ptr<Channel> channel,
                                              Produce produce) {
  HAULWAY_ASSIGN(const int self_number, OpenPidFd(::getpid()));
  const UniqueFd self(self_number);
  const pid_t pid = ::fork();
  if (pid < 0) return Status::FromErrno(errno, "cannot fork");
  if (pid == 0) {
    (void)EndWithPeer(self.get(), kGraceMs, {});
    const Status served = Serve(*channel, self.get(), produce);
    ::_exit(served.ok() ? 0 : 1);
  }
  std::unique_ptr<Worker> worker(new Worker());
  worker->pid_ = pid;
  HAULWAY_ASSIGN(worker->pidfd_, OpenPidFd(pid));
  HAULWAY_ASSIGN(worker->receiver_, channel->OpenReceiver(worker->pidfd_));
  return worker;
}

std::optional<int> Worker::exit_code() {
  if (exit_code_.has_value()) return exit_code_;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  exit_code_ = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  return exit_code_;
}

Worker::~Worker() {
  if (receiver_ != nullptr) receiver_->Abort();
  if (pid_ > 0 && !exit_code().has_value()) {
    pollfd ended = {pidfd_, POLLIN, 0};
    if (pidfd_ < 0 || ::poll(&ended, 1, kGraceMs) <= 0) {
      (void)::kill(pid_, SIGKILL);
    }
    int status = 0;
    (void)::waitpid(pid_, &status, 0);
  }
  if (pidfd_ >= 0) ::close(pidfd_);
}

}  // namespace haulway
