#include "haulway/fields.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "haulway/archive.h"
#include "haulway/compare.h"
#include "haulway/convert.h"
#include "haulway/delta.h"
#include "haulway/delta_apply.h"
#include "haulway/layout.h"
#include "haulway/load.h"
#include "haulway/open.h"
#include "haulway/options.h"
#include "haulway/quantization.h"
#include "haulway/runs.h"
#include "haulway/save.h"
#include "haulway/signature.h"
#include "haulway/signing.h"
#include "haulway/sink.h"
#include "haulway/tensorizer.h"
#include "haulway/verify.h"
#include "haulway/version_publisher.h"

namespace haulway {
namespace {

// Returns the number of fields of a struct. Checks that each has a unique name
// and a meaning, and that only numbers are summed.
template <class Struct>
size_t NamesOf(const Struct& object) {
  std::set<std::string_view> names;
  ForEachField(object, [&](const auto& field, const auto& value) {
    EXPECT_FALSE(field.meaning.empty()) << field.name;
    EXPECT_FALSE(field.meaning.ends_with('.')) << field.name;
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    if (field.adding != Adding::kSum) return;
    using Value = std::remove_cvref_t<decltype(value)>;
    EXPECT_TRUE(std::is_arithmetic_v<Value>) << field.name;
    EXPECT_FALSE((std::is_same_v<Value, bool>)) << field.name;
  });
  return names.size();
}

// This fails to compile if a member has no row.
TEST(Fields, EveryMemberHasARow) {
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o,
                                  p] = LoadStats();
    EXPECT_EQ(NamesOf(LoadStats()), 16u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] =
        WriteStats();
    EXPECT_EQ(NamesOf(WriteStats()), 14u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g] = TensorStats();
    EXPECT_EQ(NamesOf(TensorStats()), 7u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f] = NumberDifference();
    EXPECT_EQ(NamesOf(NumberDifference()), 6u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e] = DownloadStats();
    EXPECT_EQ(NamesOf(DownloadStats()), 5u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d] = TensorizerEditStats();
    EXPECT_EQ(NamesOf(TensorizerEditStats()), 4u);
  }
  {
    // Without a row, because only C++ has them: progress, cancel, allocate,
    // pool.
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l] =
        LoadOptions();
    EXPECT_EQ(NamesOf(LoadOptions()), 8u);
  }
}

TEST(Fields, EveryMemberOfAReportHasARow) {
  {
    [[maybe_unused]] const auto& [a, b, c] = Finding();
    EXPECT_EQ(NamesOf(Finding()), 3u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d] = Unchecked();
    EXPECT_EQ(NamesOf(Unchecked()), 4u);
  }
  {
    // `checked` combines two members, one of which has no row of its own.
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j] =
        VerifyReport();
    EXPECT_EQ(NamesOf(VerifyReport()), 10u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e] = ScannedGlobal();
    EXPECT_EQ(NamesOf(ScannedGlobal()), 5u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f] = ScannedPickle();
    EXPECT_EQ(NamesOf(ScannedPickle()), 6u);
  }
  {
    // Also has a row for `safe`.
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g] = ScanReport();
    EXPECT_EQ(NamesOf(ScanReport()), 8u);
  }
  {
    // `a` and `b` stand for the dtypes and shapes; also has the six numbers.
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g] = ChangedTensor();
    EXPECT_EQ(NamesOf(ChangedTensor()), 4u + NamesOf(NumberDifference()));
  }
  {
    // Also has a row for `equal`.
    [[maybe_unused]] const auto& [a, b, c, d, e, f] = DiffReport();
    EXPECT_EQ(NamesOf(DiffReport()), 7u);
  }
  {
    // `bytes` is the one of `write`.
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] =
        ConvertReport();
    EXPECT_EQ(NamesOf(ConvertReport()), 13u + NamesOf(WriteStats()));
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g] = EditReport();
    EXPECT_EQ(NamesOf(EditReport()), 7u);
  }
  {
    [[maybe_unused]] const auto& [a, b] = SignedSubject();
    EXPECT_EQ(NamesOf(SignedSubject()), 2u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i] = SignatureFacts();
    EXPECT_EQ(NamesOf(SignatureFacts()), 9u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c] = SignatureFinding();
    EXPECT_EQ(NamesOf(SignatureFinding()), 3u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g] = SignatureReport();
    EXPECT_EQ(NamesOf(SignatureReport()), 7u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i] = SignReport();
    EXPECT_EQ(NamesOf(SignReport()), 9u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] =
        SignatureOptions();
    EXPECT_EQ(NamesOf(SignatureOptions()), 13u);
  }
  {
    // Also has a row for `ok`.
    [[maybe_unused]] const auto& [a, b, c, d, e, f] = RepairReport();
    EXPECT_EQ(NamesOf(RepairReport()), 7u);
  }
  {
    [[maybe_unused]] const auto& [a, b] = TensorSide();
    EXPECT_EQ(NamesOf(TensorSide()), 2u);
  }
  {
    [[maybe_unused]] const auto& [a, b] = TensorProof();
    EXPECT_EQ(NamesOf(TensorProof()), 2u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c] = TieNote();
    EXPECT_EQ(NamesOf(TieNote()), 3u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c] = Quantization();
    EXPECT_EQ(NamesOf(Quantization()), 3u);
  }
  {
    [[maybe_unused]] const auto& [a, b] = LeftOut();
    EXPECT_EQ(NamesOf(LeftOut()), 2u);
  }
  {
    [[maybe_unused]] const auto& [a, b] = TakenTensor();
    EXPECT_EQ(NamesOf(TakenTensor()), 2u);
  }
  {
    [[maybe_unused]] const auto& [a, b] = LostTensor();
    EXPECT_EQ(NamesOf(LostTensor()), 2u);
  }
  {
    [[maybe_unused]] const auto& [a, b] = WrittenFiles();
    EXPECT_EQ(NamesOf(WrittenFiles()), 1u + NamesOf(WriteStats()));
  }
}

// The comments list the members that have no row: functions and cancel flags,
// which only C++ has, and parts that are passed separately.
TEST(Fields, EveryMemberOfOptionsHasARow) {
  {
    // No row: progress, cancel.
    [[maybe_unused]] const auto& [a, b, c, d] = WriteOptions();
    EXPECT_EQ(NamesOf(WriteOptions()), 2u);
  }
  {
    // No row: checksums, path. The key counts as two.
    [[maybe_unused]] const auto& [a, b, c, d, e] = SaveOptions();
    EXPECT_EQ(NamesOf(SaveOptions()), 3u + NamesOf(WriteOptions()));
  }
  {
    // No row: to, dtype, dtype_of, select, names, rename, metadata, open.
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o,
                                  p] = ConvertOptions();
    EXPECT_EQ(NamesOf(ConvertOptions()), 7u + NamesOf(SaveOptions()));
  }
  {
    // No row: open, output.
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g] = EditOptions();
    EXPECT_EQ(NamesOf(EditOptions()), 4u + NamesOf(WriteOptions()));
  }
  {
    // No row: to, open, open_sink.
    [[maybe_unused]] const auto& [a, b, c, d, e] = RepairOptions();
    EXPECT_EQ(NamesOf(RepairOptions()), 1u + NamesOf(SaveOptions()));
  }
  {
    // No row: derivation, nonce.
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i] =
        TensorizerOptions();
    EXPECT_EQ(NamesOf(TensorizerOptions()), 7u);
  }
  {
    // No row: limits, nonce. The key counts as two.
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h] =
        TensorizerEditOptions();
    EXPECT_EQ(NamesOf(TensorizerEditOptions()), 7u);
  }
  {
    // No row: limits, dequantized_dtype, open_input. The key counts as two.
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o,
                                  p, q, r, s] = OpenOptions();
    EXPECT_EQ(NamesOf(OpenOptions()), 17u);
  }
  {
    // No row: proxy_from_environment, cancel.
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o,
                                  p, q, r, s, t, u] = RemoteOptions();
    EXPECT_EQ(NamesOf(RemoteOptions()), 19u);
  }
  {
    // No row: io, remote, write_through, signature, signed_model.
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g] = SourceOptions();
    EXPECT_EQ(NamesOf(SourceOptions()), 2u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k] =
        WeightVersion();
    EXPECT_EQ(NamesOf(WeightVersion()), 11u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d] = VersionFinding();
    EXPECT_EQ(NamesOf(VersionFinding()), 4u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e] = VersionsReport();
    EXPECT_EQ(NamesOf(VersionsReport()), 5u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g] = ApplyReport();
    EXPECT_EQ(NamesOf(ApplyReport()), 7u);
  }
  {
    [[maybe_unused]] const auto& [a, b] = PruneReport();
    EXPECT_EQ(NamesOf(PruneReport()), 2u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g] = RunEntry();
    EXPECT_EQ(NamesOf(RunEntry()), 7u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c] = SkippedEntry();
    EXPECT_EQ(NamesOf(SkippedEntry()), 3u);
  }
  {
    // Two rows of the entry.
    [[maybe_unused]] const auto& [a, b, c, d] = LatestReport();
    EXPECT_EQ(NamesOf(LatestReport()), 5u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d] = PruneRunReport();
    EXPECT_EQ(NamesOf(PruneRunReport()), 4u);
  }
  {
    // No row: environment.
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l] =
        S3Options();
    EXPECT_EQ(NamesOf(S3Options()), 11u);
  }
  {
    [[maybe_unused]] const auto& [a, b] = EncryptionKey();
    EXPECT_EQ(NamesOf(EncryptionKey()), 2u);
  }
  {
    // No row: archive_name.
    [[maybe_unused]] const auto& [a, b, c, d] = ArchiveWriterOptions();
    EXPECT_EQ(NamesOf(ArchiveWriterOptions()), 3u);
  }
  {
    // No row: existing, direct, is_private, is_read, replaces_link, temporary.
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g] = FileSinkOptions();
    EXPECT_EQ(NamesOf(FileSinkOptions()), 1u);
  }
  {
    // No row: format, metadata, open.
    [[maybe_unused]] const auto& [a, b, c, d, e, f] = TensorWriterOptions();
    EXPECT_EQ(NamesOf(TensorWriterOptions()), 2u + NamesOf(SaveOptions()));
  }
  {
    [[maybe_unused]] const auto& [a, b] = RepackOptions();
    EXPECT_EQ(NamesOf(RepackOptions()), 1u + NamesOf(ArchiveWriterOptions()));
  }
  {
    // No row: select, progress, cancel.
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i] = DiffOptions();
    EXPECT_EQ(NamesOf(DiffOptions()), 6u);
  }
  {
    // No row: select, progress, cancel.
    [[maybe_unused]] const auto& [a, b, c, d, e, f] = ManifestOptions();
    EXPECT_EQ(NamesOf(ManifestOptions()), 3u);
  }
  {
    // No row: progress, cancel.
    [[maybe_unused]] const auto& [a, b, c, d] = TensorStatsOptions();
    EXPECT_EQ(NamesOf(TensorStatsOptions()), 2u);
  }
}

TEST(Fields, WordsAreInTheOrderOfTheValues) {
  EXPECT_EQ(WordOf(Durability::kNone), "none");
  EXPECT_EQ(WordOf(Ties::kError), "error");
  EXPECT_EQ(WordOf(IoMode::kSnapshot), "snapshot");
  EXPECT_EQ(WordOf(SegmentRoom::kMove), "move");
  EXPECT_EQ(WordOf(TensorizerLayout::kSegmentsPr170), "segments-pr170");
  EXPECT_EQ(FromWord<Durability>("none"), Durability::kNone);
  EXPECT_EQ(FromWord<Durability>("half"), std::nullopt);
}

TEST(Fields, AnAbsentPartHasEmptyFields) {
  ChangedTensor tensor;
  std::vector<std::string> empty;
  const auto note = [&](const auto& field, const auto& value) {
    if constexpr (requires { value.has_value(); }) {
      if (!value.has_value()) empty.emplace_back(field.name);
    }
  };
  ForEachField(tensor, note);
  EXPECT_EQ(empty.size(), NamesOf(NumberDifference()));
  tensor.numbers.emplace();
  empty.clear();
  ForEachField(tensor, note);
  EXPECT_TRUE(empty.empty());
}

TEST(Fields, AddUpAsTheirTableSays) {
  LoadStats total;
  total.tensor_bytes = 1;
  total.threads = 2;
  total.seconds = 0.5;
  total.reason = "first";
  LoadStats more;
  more.tensor_bytes = 2;
  more.threads = 1;
  more.seconds = 0.25;
  more.reason = "second";
  AddUp(more, &total);
  EXPECT_EQ(total.tensor_bytes, 3u);
  EXPECT_EQ(total.threads, 2);
  EXPECT_EQ(total.seconds, 0.75);
  EXPECT_EQ(total.reason, "first");
}

TEST(Fields, FlagsAddUpToWhetherAnyIsSet) {
  WriteStats total;
  WriteStats more;
  more.direct = true;
  AddUp(more, &total);
  EXPECT_TRUE(total.direct);
  AddUp(WriteStats(), &total);
  EXPECT_TRUE(total.direct);
}

}  // namespace
}  // namespace haulway
