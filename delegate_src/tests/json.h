// Reads JSON, strictly, for tests of what the delegate reports.
#pragma once

#include <cctype>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace litefuse::fake {

struct Json {
  enum class Sort { kNothing, kBool, kNumber, kString, kArray, kObject };
  Sort sort = Sort::kNothing;
  bool boolean = false;
  double number = 0.0;
  std::string text;
  std::vector<Json> items;
  std::map<std::string, Json> members;

  const Json& operator[](const std::string& key) const {
    static const Json* nothing = new Json();
    const auto found = members.find(key);
    return found != members.end() ? found->second : *nothing;
  }
  bool has(const std::string& key) const { return members.count(key) != 0; }
};

class JsonReader {
 public:
  explicit JsonReader(const std::string& text) : text_(text) {}

  // False unless the text is one value and nothing else.
  bool read(Json* value) { return any(value) && (skip(), at_ == text_.size()); }

 private:
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool take(const std::string& token) {
    skip();
    if (text_.compare(at_, token.size(), token) != 0) return false;
    at_ += token.size();
    return true;
  }
  bool string(std::string* result) {
    if (!take("\"")) return false;
    while (at_ < text_.size() && text_[at_] != '"') {
      char c = text_[at_++];
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c == '\\') {
        if (at_ >= text_.size()) return false;
        c = text_[at_++];
        if (c == 'u') {
          if (at_ + 4 > text_.size()) return false;
          c = static_cast<char>(std::strtol(text_.substr(at_, 4).c_str(), nullptr, 16));
          at_ += 4;
        } else if (c != '"' && c != '\\') {
          return false;
        }
      }
      *result += c;
    }
    return take("\"");
  }
  bool any(Json* value) {
    skip();
    if (at_ >= text_.size()) return false;
    const char c = text_[at_];
    if (c == '"') {
      value->sort = Json::Sort::kString;
      return string(&value->text);
    }
    if (c == '{') return object(value);
    if (c == '[') return array(value);
    if (take("true") || take("false")) {
      value->sort = Json::Sort::kBool;
      value->boolean = text_[at_ - 2] == 'u';
      return true;
    }
    char* end = nullptr;
    value->sort = Json::Sort::kNumber;
    value->number = std::strtod(text_.c_str() + at_, &end);
    const auto length = static_cast<size_t>(end - (text_.c_str() + at_));
    at_ += length;
    return length > 0;
  }
  bool object(Json* value) {
    value->sort = Json::Sort::kObject;
    take("{");
    if (take("}")) return true;
    do {
      std::string key;
      if (!string(&key) || !take(":") || value->members.count(key) != 0 || !any(&value->members[key])) return false;
    } while (take(","));
    return take("}");
  }
  bool array(Json* value) {
    value->sort = Json::Sort::kArray;
    take("[");
    if (take("]")) return true;
    do {
      value->items.emplace_back();
      if (!any(&value->items.back())) return false;
    } while (take(","));
    return take("]");
  }

  const std::string& text_;
  size_t at_ = 0;
};

}  // namespace litefuse::fake
