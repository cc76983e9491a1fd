#include "scan/text_proof.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>

#include "scan/file_names.h"
#include "scan/template_proof.h"
#include "scan/torchscript_text.h"

namespace haulway::scan {
namespace {

using testing::HasSubstr;

std::string WhyOf(std::string_view text, std::string_view name) {
  const auto doubt = DoubtOfText(text, name);
  return doubt.has_value() ? doubt->why : "";
}

TEST(TextProof, TakesJsonForDataIfItIsJsonToTheEnd) {
  for (const std::string_view text :
       {"{}", " [1, -2.5e9, true, null, NaN, \"x\\\"}\"]\n",
        "{\"a\": {\"b\": [[], {}]}, \"c\": \"\\u0041\"}",
        "{\"a\": 1}\n\n{\"a\": 2}\n", "\xEF\xBB\xBF{\"a\": 1}",
        "{\"max\": 1000000000000000019884624838656}"}) {
    EXPECT_EQ(WhyOf(text, "config.json"), "") << text;
  }
  for (const std::string_view text :
       {"", "{", "{}}", "{} x", "{\"a\" 1}", "{\"a\": }", "{a: 1}", "[1,]",
        "[1, 2", "{\"a\": 1]", "[\"x]", "[!!python/name:os.system]", "[tru]",
        "{\"a\": \"\n\"}", "{\"a\",}", "[,]", "{,}"}) {
    EXPECT_NE(WhyOf(text, "config.json"), "") << text;
  }
}

TEST(TextProof, SeesKeysByWhichReadersRunCode) {
  for (const std::string_view text :
       {R"({"a": [{"class_name": "Lambda"}]})", R"({"auto_map": {}})",
        R"({"py/object": "os.system"})", R"({"py\u002freduce": []})",
        R"({"\u0061uto_map": 1})", R"({"class_path": "os.system"})",
        R"([{"x": {"_target_": "os.system"}}])"}) {
    EXPECT_NE(WhyOf(text, "config.json"), "") << text;
    EXPECT_NE(WhyOf(text, ""), "") << text;
  }
  EXPECT_EQ(WhyOf(R"({"a": "class_name"})", "config.json"), "");
}

struct Config {
  const char* file;
  std::string_view text;
};

TEST(TextProof, SeesValuesByWhichReadersImportCode) {
  for (const auto& [file, text] : {
           Config{"modules.json", R"([{"idx":0,"type":"os.system"}])"},
           Config{"modules.json", R"([{"type":"sentence_transformers.os.x"}])"},
           Config{"modules.json", R"([{"type":"my_m\u00f6dule.Model"}])"},
           Config{"modules.json", R"([{"type":"me/re.po--my-file.Model"}])"},
           Config{"router_config.json", R"({"types":{"a":"evil.Model"}})"},
           Config{"config.json", R"({"activation_function":"evil.Act"})"},
           Config{"config.json", R"({"a":{"activation_fn":"os.getcwd"}})"},
           Config{"config.json", R"({"activation_fn":"evil.  x.y)!"})"},
           Config{"model.json", R"({"model":{"type":"evil:Model"}})"},
           Config{"config.json", R"({"target":"evil.Model","params":{}})"},
           Config{"adapter_config.json",
                  R"({"auto_mapping":{"parent_library":"evil"}})"},
           Config{"adapter_config.json", R"({"megatron_core":"evil"})"},
           Config{"config.json", R"({"attn_implementation":"me/kernel"})"},
           Config{"config.json",
                  R"({"_attn_implementation":{"text":"me/kernel"}})"},
           Config{"config.json", R"({"trust_remote_code":true})"},
           Config{"model_index.json", R"({"_class_name":["mine","Mine"]})"},
           Config{"model_index.json", R"({"unet":["evil","Model"]})"},
           Config{"", R"({"unet":["evil","M"],"_class_name":"APipeline"})"},
           Config{"", R"({"unet":[null,null,{"type_hint":["evil","M"]}]})"},
           Config{"genai_config.json", R"({"custom_ops_library":"x.so"})"},
           Config{"configuration.json", R"({"plugins":["evil"]})"},
           Config{"x.json", R"({"lc":1,"type":"constructor","id":["a","B"]})"},
           Config{"x.yaml", R"({"_tar\x67et_":"os.system"})"},
           Config{"x.json", R"({"$type":"evil.Model, Evil"})"},
           Config{"x.json", R"({"a":{"@type":"com.evil.Model"}})"},
           Config{"features.json", R"({"pythonClassName":"evil.Model"})"},
       }) {
    EXPECT_NE(WhyOf(text, file), "") << text;
  }
  for (const auto& [file, text] : {
           Config{"modules.json",
                  R"([{"type":"sentence_transformers.models.Pooling"},{"type":)"
                  R"("sentence_transformers.base.modules.router.Router"}])"},
           Config{
               "config.json",
               R"({"activation_function":"torch.nn.modules.linear.Identity",)"
               R"("model_type":"bert","a":{"activation":"gelu_new"}})"},
           Config{
               "adapter_config.json",
               R"({"auto_mapping":{"base_model_class":"BertModel",)"
               R"("parent_library":"transformers.models.bert"},)"
               R"("megatron_core":"megatron.core","target_modules":["a.b"]})"},
           Config{"config.json", R"({"_attn_implementation":"sdpa",)"
                                 R"("trust_remote_code":false})"},
           Config{"model_index.json",
                  R"({"_class_name":"APipeline","unet":["diffusers","U"],)"
                  R"("safety":["stable_diffusion","S"],"f":[null,null],)"
                  R"("_ignore_files":["x"],"n":[1,2]})"},
           Config{"unet/config.json",
                  R"({"_class_name":"UNet2DConditionModel",)"
                  R"("down_block_types":["Down","Up"]})"},
           Config{"croissant.json", R"({"@type":"sc:Dataset","a":)"
                                    R"({"@type":"http://schema.org/x.y"}})"},
           Config{"vocab.json", R"({"lc":5,"type":1,"__class__":2,"class":3})"},
           Config{"x.json",
                  R"({"plugins":["a"],"name":"a.B","type":"1.0","fn":"a.b"})"},
       }) {
    EXPECT_EQ(WhyOf(text, file), "") << text;
  }
}

TEST(TextProof, TakesTheNamesThatTheCallerAllows) {
  const std::string_view text = R"([{"type":"mine.Model"}])";
  EXPECT_TRUE(DoubtOfText(text, "modules.json").has_value());
  const std::string allowed[] = {"mine.Model", "mine.Thing"};
  EXPECT_FALSE(DoubtOfText(text, "modules.json", allowed).has_value());
  const std::string_view skops =
      R"({"__class__":"Thing","__module__":"mine","__loader__":"ObjectNode"})";
  EXPECT_TRUE(DoubtOfText(skops, "schema.json").has_value());
  EXPECT_FALSE(DoubtOfText(skops, "schema.json", allowed).has_value());
  const std::string_view tree =
      R"({"__class__":"Thing","__module__":"mine","__loader__":"TreeNode"})";
  EXPECT_TRUE(DoubtOfText(tree, "schema.json").has_value());
  EXPECT_FALSE(DoubtOfText(tree, "schema.json", allowed).has_value());
}

TEST(TextProof, SeesClassesThatSkopsImports) {
  const auto object = [](std::string_view loader, std::string_view module,
                         std::string_view name) {
    return fmt::format(
        R"({{"content":{{"a":{{"__class__":"{}","__module__":"{}",)"
        R"("__loader__":"{}"}}}}}})",
        name, module, loader);
  };
  for (const auto& [loader, module, name] :
       {std::array{"ObjectNode", "sklearn.linear_model._base",
                   "LinearRegression"},
        std::array{"DictNode", "builtins", "dict"},
        std::array{"NdArrayNode", "numpy", "ndarray"},
        std::array{"NdArrayNode", "numpy", "float32"},
        std::array{"FunctionNode", "numpy", "log1p"},
        std::array{"LossNode", "sklearn.linear_model._sgd_fast", "Hinge"}}) {
    EXPECT_EQ(WhyOf(object(loader, module, name), "schema.json"), "") << name;
  }
  for (const auto& [loader, module, name] :
       {std::array{"ObjectNode", "os", "system"},
        std::array{"TypeNode", "builtins", "eval"},
        std::array{"ObjectNode", "sklearn.linear_model._base", "os"},
        std::array{"ObjectNode", "sklearn.linear_model._base", ""},
        std::array{"TreeNode", "sklearn.tree._tree", "Tree"},
        std::array{"FunctionNode", "numpy", "load"},
        std::array{"MethodNode", "builtins", "dict"},
        std::array{"OperatorFuncNode", "operator", "methodcaller"},
        std::array{"evil", "builtins", "dict"}}) {
    EXPECT_NE(WhyOf(object(loader, module, name), ""), "") << name;
  }
  EXPECT_NE(WhyOf(R"({"\u005f_class__":"x"})", "schema.json"), "");
}

TEST(TextProof, SeesNamesOfCodeInYamlAndItsKin) {
  for (const auto& [file, text] : {
           Config{"x.yaml", "target: evil.Model\n"},
           Config{"x.yaml", "a:\n  - model_type: 'evil.Model' # x\n"},
           Config{"x.yaml", "{a: 1, \"target\":evil.Model}"},
           Config{"x.yaml", "? target # why\n: evil.Model\n"},
           Config{"x.yaml", "target: &a !!str\n  evil.Model\n"},
           Config{"x.yaml", "target: >-\n  evil.Model\n"},
           Config{"x.yaml", "target:\xE2\x80\xA8 evil.Model\n"},
           Config{"x.yaml", "\"t\\x61rget\": \"evil\\x2eModel\"\n"},
           Config{"x.yaml", "a: &a evil.Model\ntarget: *a\n"},
           Config{"x.yaml", "a: &k target\n*k : evil.Model\n"},
           Config{"x.yaml", "types: [a, evil.Model]\n"},
           Config{"x.yaml", "types:\n- a\n- evil.Model\n"},
           Config{"x.yml", "class_name: Lambda\n"},
           Config{"x.yaml", "trust_remote_code: true\n"},
           Config{"x.yaml", "download: bash get.sh\n"},
           Config{"x.yaml", "download: |\n  import os: x\n"},
           Config{"x.yaml",
                  "nc: 1\nbackbone:\n  [[-1, 1, exit(), []]]\nhead:\n"},
           Config{"x.yaml", "backbone: []\nactivation: exit()\n"},
           Config{"x.yaml", "backbone:\n- [a#b, 1, exit(), []]\nhead:\n"},
           Config{"x.yaml", "\"b\\x61ckbone\": [[exit()]]\nhead:\n"},
           Config{"x.yaml", R"-({"backbone": ["exit()"], "head": []})-"},
           Config{"x.yaml", R"-({"backbone": ["exit\u0028)"], "head": []})-"},
           Config{"x.yml", "filters:\n  a:\n    (): evil.run\n"},
           Config{"x.yaml", "{a: {\"()\" : evil.run}}\n"},
           Config{"x.yaml", "a:\n  \"\\x28)\": evil.run\n"},
           Config{"x.yaml", "level: ext://evil.run\n"},
           Config{"x.json", R"({"level": "\u0065xt://evil.run"})"},
           Config{"x.json", R"-({"a": {"()": "evil.run"}})-"},
           Config{"x.yaml", "chat_template: '{{ x[y] }}'\n"},
           Config{"x.toml", "prompt_template = \"{{ x[y] }}\"\n"},
           Config{"config.yaml", "pipeline:\n  name: evil.Pipeline\n"},
           Config{"x.toml", "type = \"\"\"\nevil.Model\"\"\"\n"},
           Config{"x.cfg", "class = evil.Model\n"},
       }) {
    EXPECT_NE(WhyOf(text, file), "") << text;
  }
  for (const auto& [file, text] : {
           Config{"x.yaml", "type: bert\ntarget: 0.5\nmodule:\n  a.b: 1\n"},
           Config{"x.yaml", "- type: it's a word, so to say\n- x\n"},
           Config{"x.yaml", "trust_remote_code:\na: b\n"},
           Config{"x.yaml", "trust_remote_code: false # no\n"},
           Config{"x.yaml", "download: https://host/x.zip\n"},
           Config{"x.yaml",
                  "nc: 1  # (x)\nbackbone:\n  [[-1, 1, Conv, []]]\n"
                  "head:\n"},
           Config{"x.yaml", "types: [a, b]\nname: a.B\n"},
           Config{"x.yaml", R"-({"backbone": "a (b)", "x": "external"})-"},
           Config{"x.yaml", "backbone: resnet\nnote: f() and (g)\n"},
           Config{"x.yaml", "note: see f(): g\n"},
           Config{"x.yaml", "chat_template: '{{ x.y }}'\n"},
           Config{"x.yaml", "a: '{{ x[y] }}'\n"},
           Config{"x.cfg",
                  "[a]\n@architectures = \"spacy.Tagger.v2\"\n"
                  "factory = \"ner\"\n"},
           Config{"x.txt", "target: evil.Model\n"},
           Config{"x.conf", "recovery_target_time = ''\n"},
       }) {
    EXPECT_EQ(WhyOf(text, file), "") << text;
  }
}

// Texts of half a megabyte whose reading once took minutes.
TEST(TextProof, TakesLittleTimeForTangledTexts) {
  const auto many = [](std::string_view text) {
    std::string whole;
    while (whole.size() < 500'000) whole += text;
    return whole;
  };
  WhyOf("<a>" + many("xmlns "), "x.xml");
  WhyOf("<a>" + many("class= "), "x.xml");
  WhyOf("<a " + many("xmlns='class=' "), "x.xml");
  EXPECT_EQ(WhyOf(many("# x\n"), "x.yaml"), "");
  EXPECT_EQ(WhyOf(many("type: a # x\n\n"), "x.yaml"), "");
  EXPECT_THAT(WhyOf("a: " + many("&"), "x.yaml"), HasSubstr("tangled"));
  EXPECT_THAT(WhyOf(many("type: "), "x.yaml"), HasSubstr("tangled"));
  EXPECT_THAT(WhyOf(many("types:[a,"), "x.yaml"), HasSubstr("tangled"));
  EXPECT_THAT(WhyOf(many("type: |"), "x.yaml"), HasSubstr("tangled"));
  std::string macros;
  for (int i = 0; i < 20'000; ++i) {
    macros += fmt::format("{{% macro a{}() %}}{{% endmacro %}}{{{{ x }}}}", i);
  }
  EXPECT_EQ(WhyOf(macros, "x.jinja"), "");
  WhyOf("{{ x" + many("|join(x") + " }}", "x.jinja");
}

TEST(TextProof, SeesScriptsOfXml) {
  for (const std::string_view text :
       {"<a xmlns='http://www.w3.org/1999/xhtml'><script>1</script></a>",
        "<a xmlns:b = \"http://www.w3.org/1999/xhtm&#108;\"/>",
        "<?xml version='1.0'?>\n<?xml-stylesheet href='x.xsl'?><a/>",
        "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
        "<!DOCTYPE a [<!ATTLIST a xmlns CDATA 'x'>]><a/>",
        "<java class='java.beans.XMLDecoder'/>",
        "<bean class =\n \"evil&#46;Model\"/>"}) {
    EXPECT_NE(WhyOf(text, "x.xml"), "") << text;
    EXPECT_EQ(WhyOf(text, "x.txt"), "") << text;
  }
  EXPECT_EQ(WhyOf("<?xml version='1.0'?>\n<!DOCTYPE net>\n<!-- x --><net "
                  "version='11' xmlns:x"
                  "='http://www.w3.org/2001/XMLSchema-instance'/>",
                  "x.xml"),
            "");
  EXPECT_EQ(WhyOf("<a class='word' className='a.b'>a.b</a>", "x.xml"), "");
}

TEST(TextProof, SeesTagsOfYamlHoweverTheyAreWritten) {
  for (const std::string_view text :
       {"!!python/name:os.system", "a: !!python/object:os.x {}",
        "[!!python/tuple [1]]", "- !<tag:yaml.org,2002:python/name:x> 1",
        "!!p%79thon/name:x", "%TAG ! tag:x\n---\n!y 1", "? !!python/none"}) {
    EXPECT_NE(WhyOf(text, "notes.txt"), "") << text;
  }
  EXPECT_EQ(WhyOf("Hello! This is !important. a != b\n", "notes.txt"), "");
  EXPECT_EQ(WhyOf("a: !!str 1\nb: x!\n", "x.yaml"), "");
  EXPECT_NE(WhyOf("a: !own 1\n", "x.yaml"), "");
  EXPECT_EQ(WhyOf("a: \"\\x41 \\q \\u00e9\\\n  b\\", "x.yaml"), "");
  EXPECT_NE(WhyOf("\"_tar\\x67et\\U0000005f\": a.b\n", "x.yaml"), "");
  EXPECT_NE(WhyOf("class_path: os.system\n", "x.yaml"), "");
  EXPECT_EQ(WhyOf("class_path: os.system\n", "x.txt"), "");
  EXPECT_NE(WhyOf("? \"_tar\\\n  get_\"\n: a.b\n", "x.yaml"), "");
  EXPECT_EQ(WhyOf("\"_tar\\x67et\\U0000005f\": a.b\n", "x.txt"), "");
}

TEST(TextProof, AsksTheNameWhoRunsAText) {
  const std::string_view words = "some words\n";
  for (const char* name : {"README.md", "a/b.TXT", "LICENSE", ".gitattributes",
                           "https://host/x.txt?y=z.sh", "17",
                           "0123456789abcdef0123456789abcdef"}) {
    EXPECT_EQ(WhyOf(words, name), "") << name;
  }
  for (const char* name : {"run", "x.install", "a.txt/run", "config"}) {
    EXPECT_NE(WhyOf(words, name), "") << name;
  }
  for (const char* name :
       {"x.py", "X.PY", "lib.so.1", "Makefile", "a/setup.cfg", "x.exe.",
        "x.sh ", "m.ipynb", "requirements-dev.txt", "entry_points.txt"}) {
    EXPECT_EQ(FactsOfName(name).kind, NameKind::kCode) << name;
  }
}

TEST(TextProof, SeesLinesOfProgramsWhereThereIsNoName) {
  for (const std::string_view text :
       {"touch /tmp/x\n", "words\nrm -rf x\n", "a=1\n", "print('x')\n",
        "import os\n", "from os import system\n", "Words\n./run\n", "x $(y)\n",
        "curl x | sh\n"}) {
    EXPECT_NE(WhyOf(text, ""), "") << text;
  }
  for (const std::string_view text :
       {"some words\n", "Some words - and more; of them (c) 2026.\n", "a: 1\n",
        "from here on\n", "1,2\n3,4\n"}) {
    EXPECT_EQ(WhyOf(text, ""), "") << text;
  }
}

TEST(TemplateProof, KnowsTemplatesThatPutTextsTogether) {
  for (const std::string_view text :
       {"", "Words { of } {# a comment {{ x.__y__ }} #} no template",
        "{% for message in messages %}{% if loop.first and "
        "messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\n' }}"
        "{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + "
        "message['content'] | trim + '<|im_end|>'}}{% endfor %}",
        "{%- set loop_messages = messages[1:] -%}{%- set ns = "
        "namespace(index=0) %}{% for m in loop_messages[::-1] %}"
        "{%- set ns.index = ns.index + 1 %}{% if (m.role == 'user') != "
        "(ns.index % 2 == 0) %}{{ raise_exception('odd') }}{% endif %}"
        "{{- m.content.split('</think>')[-1].lstrip('\\n') }}{% endfor %}",
        "{% for t in tools %}{{ t | tojson(indent=4) }}{% endfor %}"
        "{% set u = messages | selectattr('role', 'equalto', 'user') | list %}"
        "{% macro f(x) %}{{ x }}{% endmacro %}{{ f({'a': {'b': '}}'}}) }}"
        "{% for k, v in d.items() if k != 'return' %}{{ k }}{% endfor %}"
        "{% if tools is defined and tools is not none %}"
        "{{ strftime_now('%d') }}{% endif %}{{ m[loop.index0 - 1].role }}",
        "{{ x | map(attribute='a.b') | sum }}{{ x | sum(attribute='size', "
        "start=0) }}{{ [x, y] | max }}{{ x | unique | join(', ') }}"
        "{{ x | join(y or 'z') | trim }}",
        "{% for x in tree recursive %}{{ x.a }}{{ loop(x.b) }}{% endfor %}",
        "{% if x in ['a', 'b'] and y not in [1] %}{{ x }}{% endif %}"}) {
    const auto doubt = DoubtOfTemplate(text);
    EXPECT_FALSE(doubt.has_value()) << text << ": " << doubt->why;
  }
}

TEST(TemplateProof, DoubtsWhateverLeadsToPython) {
  for (const std::string_view text :
       {"{{ x.__class__ }}",
        "{{ x['__class__'] }}",
        "{{ x['\\x5f_class'] }}",
        "{{ x|attr('a') }}",
        "{{ x[y] }}",
        "{{ x['a' ~ 'b'] }}",
        "{{ x()() }}",
        "{{ x.y() }}",
        "{{ f('x') }}",
        "{{ [x][0]('y') }}",
        "{{ lipsum }}",
        "{{ self.x }}",
        "{{ x._y }}",
        "{% include 'x' %}",
        "{% raw %}{{",
        "{% set range = x.y %}{{ range('z') }}",
        "{% macro f(dict) %}",
        "{% macro f() %}{% endmacro %}{% set f = x %}",
        "{{ x|map('attr', 'y') }}",
        "{{ x|map(attribute='__class__') }}",
        "{{ x|map(attribute='a._b') }}",
        "{{ x|selectattr('_'*2) }}",
        "{{ x|map(y) }}",
        "{{ x|filter }}",
        "{{ '{0.__class__}'.format(x) }}",
        "{{ x",
        "{{ 'x }}",
        "{% %}",
        "{% from 'x' import y %}",
        "{{ (x).y() }}",
        "{% call x() %}",
        "{{ x.replace }}{{ (x.replace)('a', 'b') }}",
        "{# {{",
        "{{ a}} {{ x? }}",
        "{% if x %}{{ '%}' }}{{ y.__z__ }}{% endif %}",
        "{{ x\\y }}",
        "{{ {'a': {{ x.__y__ }} }}",
        "{{ 1.__class__ }}",
        "{{ joiner.x }}",
        "{{ x.y . __z__ }}",
        "{{ x [ '__y__' ] }}",
        "{{ {'in': x}.in['__y__'] }}",
        "{{ x.not['__y__'] }}",
        "{{ x.gi_frame.y }}",
        "{{ x['f_globals'] }}",
        "{{ x | map(attribute='gi_frame.f_globals') }}",
        "{{ x | sum(attribute='__class__.__mro__', start=()) }}",
        "{{ x | unique(attribute='__y__') }}",
        "{{ x | max(attribute='_y') }}",
        "{{ x | join('', '__y__') }}",
        "{{ x | join(attribute='__y__') }}",
        "{{ x | join(**{'attribute': y}) }}",
        "{% set loop = x.y %}{{ loop('z') }}",
        "{% set loop %}x{% endset %}{{ loop('z') }}",
        "{% macro f(loop) %}{{ loop('z') }}{% endmacro %}{{ f(x.y) }}",
        "{% macro f(x, loop=y.z) %}{{ loop('z') }}{% endmacro %}",
        "{% for x in y recursive %}{% endfor %}{% set loop = x.y %}"
        "{{ loop('z') }}",
        "{{ loop('z') }}"}) {
    EXPECT_TRUE(DoubtOfTemplate(text).has_value()) << text;
  }
  for (
      const std::string_view json :
      {R"({"chat_template": "{{ x.__y__ }}"})",
       R"({"a": {"chat_template": [{"name": "b", "template": "{{ x[y] }}"}]}})",
       R"({"chat\u005ftemplate": "\u007b{ x[y] }}"})"}) {
    EXPECT_NE(WhyOf(json, "tokenizer_config.json"), "") << json;
  }
  for (const std::string_view json :
       {R"({"chat_template": "{{ x['y'] }}\n", "b": "{{ x[y] }}"})",
        R"({"chat_template": [{"a": "{{ x }}"}], "b": ["{{ x[y] }}"]})"}) {
    EXPECT_EQ(WhyOf(json, "tokenizer_config.json"), "") << json;
  }
  EXPECT_NE(WhyOf(R"({"prompt_template": "{{ x[y] }}"})", "x.json"), "");
  EXPECT_NE(WhyOf("{{ x[y] }}\n", "chat_template.txt"), "");
  EXPECT_EQ(WhyOf("{{ x }}\n", "chat_template.txt"), "");
  EXPECT_EQ(WhyOf("{{ x[y] }}\n", "README.md"), "");
  EXPECT_EQ(WhyOf("{{ x }}\n", "chat_template.jinja"), "");
  EXPECT_NE(WhyOf("{{ x[y] }}\n", "chat_template.jinja"), "");
  EXPECT_NE(WhyOf("{{ x[y] }}\n", ""), "");
}

TEST(TorchScriptText, KnowsDeclarations) {
  const std::string_view code =
      "class Linear(Module):\n"
      "  __parameters__ = [\"weight\", ]\n"
      "  weight : Tensor\n"
      "  __annotations__[\"0\"] = __torch__.x.Y\n"
      "  size : Final[int] = 3\n"
      "  stride : Final[Tuple[int, Tuple[()]]] = (1, ())\n"
      "  given : Final[Tuple[float, str]] = (-inf, \"a(b\\\"\")\n"
      "  where : Final[Device] = torch.device(\"cuda:0\")\n"
      "  text : Final[str] = CONSTANTS.c0\n"
      "  small : Final[float] = 1.5e-30\n"
      "  def forward(self: __torch__.Linear,\n"
      "    input: Tuple[()], n: int=1,\n"
      "    pad: List[int]=[1, 2], d: Device=torch.device(\"cpu\"),\n"
      "    size: Tuple[int, int]=(1, 1)) -> Dict[str, Tensor]:\n"
      "    return torch.linear(input, self.weight)\n"
      "def f(x: Tensor) -> Tensor:\n"
      "  return evil(x)\n";
  EXPECT_FALSE(DoubtOfTorchScript(code).has_value());
  EXPECT_FALSE(DoubtOfTorchScript("op_version_set = 1\n").has_value());
}

TEST(TorchScriptText, DoubtsWhatPythonWouldRunWhenItImports) {
  for (const std::string_view code :
       {"import os\n",
        "x()\n",
        "op_version_set = f()\n",
        "class A(evil()):\n",
        "class A(Module):\n  a = f()\n",
        "class A(Module):\n  import os\n",
        "class A(Module):\n  f()\n",
        "def f(x: g()):\n",
        "def f(x=1): g()\n",
        "def f(\n  x): g()\n",
        "@g\ndef f():\n",
        "class A(Module):\n  a : B; f()\n",
        "class A(Module):\n  a : B\rimport os\n",
        "# coding: utf-7\n",
        "def f(x: T[g()]):\n",
        "class A(Module):\n  a : [\nf()]\n",
        "class A(Module):\n  a : B \\\n",
        "def f(x) -> g(1):\n",
        "def f(\n  x) -> g(1):\n",
        "def f(x) -> Dict[str, g(1)]:\n",
        "class A:\n  def __class_getitem__(cls, x):\n    g()\n",
        "class A:\n  def  __init_subclass__(cls):\n    g()\n",
        "class A:\n  __class_getitem__ = exec\n",
        "class A:\n  __class_getitem__ : B = exec\n",
        "class A:\n  b = __builtins__[\"__build_class__\"] = g\n",
        "class A:\n  b = __builtins__.x = g\n",
        "class A:\n  b = (g)(1)\n",
        "class A:\n  b = (g,)(1)\n",
        "class A:\n  b = f\"{g()}\"\n",
        "class A:\n  b = \"\"\"\n\"\"\"\n",
        "class A:\n  b : A[g(1)] = (1, 1)\n",
        "class A:\n  b = torch.device(g)\n",
        "class A:\n  b = torch.devices(\"cpu\")\n",
        "class A:\n  torch : B\n  b = torch.device(\"cpu\")\n",
        "class torch:\n  def device(x):\n    g()\n",
        "def torch(x):\n  g()\n",
        "def f(x=(g)(1)):\n",
        "def f(x: T=g(1)):\n",
        "def f(x, y=torch.device(\"cpu\")(1)):\n",
        "def f(x",
        "def f(x:",
        "def __getattr__(x):\n  g()\n"}) {
    EXPECT_TRUE(DoubtOfTorchScript(code).has_value()) << code;
  }
  const std::string deep =
      "class A:\n  b = " + std::string(100'000, '(') + "\n";
  EXPECT_TRUE(DoubtOfTorchScript(deep).has_value());
}

}  // namespace
}  // namespace haulway::scan
