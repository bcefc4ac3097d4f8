/// \file
/// Stands in for Thrust's headers. Device vectors are in simulated device memory. Algorithms run on
/// the host, element by element, and are not counted. Sums are pairwise. The rest does not compile.
#pragma once

#include <algorithm>
#include <chrono>
#include <complex>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "cuda_runtime.h"

#define THRUST_VERSION 200500
#define THRUST_MAJOR_VERSION 2
#define THRUST_MINOR_VERSION 5
#define THRUST_SUBMINOR_VERSION 0
#define THRUST_PATCH_NUMBER 0

namespace thrust {

using sim::any::Library;
using std::complex, std::iterator_traits, std::max, std::min, std::swap;
using std::get, std::tie, std::tuple, std::tuple_element, std::tuple_size, std::make_tuple;
using std::pair, std::make_pair;
template <class I>
struct iterator_difference {
  using type = typename std::iterator_traits<I>::difference_type;
};
template <class A, class R>
struct unary_function {
  using argument_type = A;
  using result_type = R;
};
template <class A, class B, class R>
struct binary_function {
  using first_argument_type = A;
  using second_argument_type = B;
  using result_type = R;
};

// --- functions -----------------------------------------------------------------------------------

#define SIM_FUNCTOR(name, ...)                                \
  template <class T = void>                                   \
  struct name {                                               \
    using result_type = T;                                    \
    using first_argument_type = T;                            \
    using second_argument_type = T;                           \
    template <class A, class B>                               \
    constexpr auto operator()(const A& p, const B& q) const { \
      if constexpr (std::is_void_v<T>) {                      \
        const A& a = p;                                       \
        const B& b = q;                                       \
        return __VA_ARGS__;                                   \
      } else {                                                \
        const T a = p, b = q;                                 \
        return __VA_ARGS__;                                   \
      }                                                       \
    }                                                         \
  };
SIM_FUNCTOR(plus, a + b)
SIM_FUNCTOR(minus, a - b)
SIM_FUNCTOR(multiplies, a* b)
SIM_FUNCTOR(divides, a / b)
SIM_FUNCTOR(modulus, a % b)
SIM_FUNCTOR(equal_to, a == b)
SIM_FUNCTOR(not_equal_to, a != b)
SIM_FUNCTOR(greater, a > b)
SIM_FUNCTOR(less, a < b)
SIM_FUNCTOR(greater_equal, a >= b)
SIM_FUNCTOR(less_equal, a <= b)
SIM_FUNCTOR(logical_and, a&& b)
SIM_FUNCTOR(logical_or, a || b)
SIM_FUNCTOR(bit_and, a& b)
SIM_FUNCTOR(bit_or, a | b)
SIM_FUNCTOR(bit_xor, a ^ b)
SIM_FUNCTOR(maximum, a < b ? b : a)
SIM_FUNCTOR(minimum, b < a ? b : a)
SIM_FUNCTOR(project2nd, b)
#undef SIM_FUNCTOR
#define SIM_FUNCTOR(name, ...)                                 \
  template <class T = void>                                    \
  struct name {                                                \
    using argument_type = T;                                   \
    using result_type = T;                                     \
    template <class A>                                         \
    constexpr auto operator()(const A& p) const {              \
      const std::conditional_t<std::is_void_v<T>, A, T> a = p; \
      return __VA_ARGS__;                                      \
    }                                                          \
  };
SIM_FUNCTOR(negate, -a)
SIM_FUNCTOR(logical_not, !a)
SIM_FUNCTOR(identity, a)
SIM_FUNCTOR(square, a* a)
#undef SIM_FUNCTOR
auto not1(auto f) {
  return [f](const auto& a) { return !f(a); };
}

/// The result of `_1 + 2`: a function of the algorithm's arguments.
template <class F>
struct Expression {
  F f;
  template <class... A>
  constexpr auto operator()(const A&... a) const {
    return f(std::tie(a...));
  }
};
template <class F>
Expression(F) -> Expression<F>;
constexpr auto evaluated(const auto& x, const auto&) { return x; }
template <class F, class A>
constexpr auto evaluated(const Expression<F>& x, const A& a) {
  return x.f(a);
}
template <class T>
constexpr bool kExpression = false;
template <class F>
constexpr bool kExpression<Expression<F>> = true;
#define SIM_SYMBOL(op)                                                                            \
  template <class X, class Y>                                                                     \
  requires(kExpression<X> || kExpression<Y>) constexpr auto operator op(const X& x, const Y& y) { \
    return Expression{[=](const auto& a) { return evaluated(x, a) op evaluated(y, a); }};         \
  }
SIM_SYMBOL(+)
SIM_SYMBOL(-)
SIM_SYMBOL(*)
SIM_SYMBOL(/)
SIM_SYMBOL(%)
SIM_SYMBOL(==)
SIM_SYMBOL(!=)
SIM_SYMBOL(<)
SIM_SYMBOL(>)
SIM_SYMBOL(<=)
SIM_SYMBOL(>=)
SIM_SYMBOL(&&)
SIM_SYMBOL(||)
SIM_SYMBOL(&)
#undef SIM_SYMBOL
template <class F>
constexpr auto operator-(const Expression<F>& x) {
  return Expression{[=](const auto& a) { return -x.f(a); }};
}
namespace placeholders {
inline constexpr Expression _1{[](const auto& a) { return std::get<0>(a); }};
inline constexpr Expression _2{[](const auto& a) { return std::get<1>(a); }};
inline constexpr Expression _3{[](const auto& a) { return std::get<2>(a); }};
}  // namespace placeholders

// --- execution policies --------------------------------------------------------------------------

struct Policy {
  Policy on(const auto&) const { return {}; }
  Policy operator()(const auto&) const { return {}; }
};
inline constexpr Policy host, device, seq;
namespace cuda {
inline constexpr Policy par, par_nosync;
}
namespace system::cuda {
using thrust::cuda::par;
}
namespace omp {
inline constexpr Policy par;
}
using system_error = std::system_error;
inline const std::error_category& cuda_category() { return std::generic_category(); }
struct device_system_tag {};
struct host_system_tag {};

// --- pointers and references ---------------------------------------------------------------------

/// An element of device memory, for host code: each use is a copy.
template <class T>
struct device_reference {
  using Value = std::remove_const_t<T>;
  T* p;
  operator Value() const {
    const Library library("Thrust");
    return *p;
  }
  const device_reference& operator=(const Value& v) const {
    const Library library("Thrust");
    *p = v;
    return *this;
  }
  const device_reference& operator=(const device_reference& o) const { return *this = Value(o); }
#define SIM_SYMBOL(op)                                          \
  const device_reference& operator op##=(const auto& v) const { \
    return *this = static_cast<Value>(Value(*this) op v);       \
  }
  SIM_SYMBOL(+)
  SIM_SYMBOL(-)
  SIM_SYMBOL(*)
  SIM_SYMBOL(/)
#undef SIM_SYMBOL
  const device_reference& operator++() const { return *this += 1; }
  device_reference(T* at) : p(at) {}
  device_reference(const device_reference&) = default;
  auto operator&() const;
};
template <class T>
std::ostream& operator<<(std::ostream& out, const device_reference<T>& r) {
  return out << static_cast<typename device_reference<T>::Value>(r);
}

/// Common to random-access iterators: `Self` defines at(n), its n-th element.
template <class Self, class T, class Reference>
struct Iterator {
  using iterator_category = std::random_access_iterator_tag;
  using value_type = std::remove_cvref_t<T>;
  using difference_type = std::ptrdiff_t;
  using reference = Reference;
  using pointer = void;
  std::ptrdiff_t n = 0;  // how far it has moved
  const Self& self() const { return static_cast<const Self&>(*this); }
  Self moved(std::ptrdiff_t by) const {
    Self other = self();
    other.n += by;
    return other;
  }
  reference operator*() const { return self().at(n); }
  reference operator[](std::ptrdiff_t i) const { return self().at(n + i); }
  Self& operator+=(std::ptrdiff_t by) { return n += by, static_cast<Self&>(*this); }
  Self& operator-=(std::ptrdiff_t by) { return n -= by, static_cast<Self&>(*this); }
  Self& operator++() { return *this += 1; }
  Self& operator--() { return *this -= 1; }
  Self operator++(int) { return ++n, moved(-1); }
  Self operator--(int) { return --n, moved(1); }
  friend Self operator+(const Self& a, std::ptrdiff_t by) { return a.moved(by); }
  friend Self operator+(std::ptrdiff_t by, const Self& a) { return a.moved(by); }
  friend Self operator-(const Self& a, std::ptrdiff_t by) { return a.moved(-by); }
  friend std::ptrdiff_t operator-(const Self& a, const Self& b) { return a.n - b.n + a.from(b); }
  friend bool operator==(const Self& a, const Self& b) { return a - b == 0; }
  friend auto operator<=>(const Self& a, const Self& b) { return (a - b) <=> 0; }
  /// The distance between their starts.
  std::ptrdiff_t from(const Self&) const { return 0; }
};

template <class T>
struct device_ptr : Iterator<device_ptr<T>, T, device_reference<T>> {
  using element_type = T;
  using pointer = device_ptr;
  T* start = nullptr;
  device_ptr() = default;
  device_ptr(std::nullptr_t) {}
  explicit device_ptr(T* p) : start(p) {}
  template <class U>
  requires(std::is_same_v<const U, T> || std::is_void_v<U>) device_ptr(const device_ptr<U>& o)
      : start(static_cast<T*>(o.get())) {}
  T* get() const { return start + this->n; }
  device_reference<T> at(std::ptrdiff_t i) const { return {start + i}; }
  std::ptrdiff_t from(const device_ptr& o) const { return start - o.start; }
  explicit operator bool() const { return get(); }
};
template <>
struct device_ptr<void> {
  void* start = nullptr;
  void* get() const { return start; }
};
template <class T>
auto device_reference<T>::operator&() const {
  return device_ptr<T>(p);
}
auto device_pointer_cast(auto* p) { return device_ptr(p); }
template <class T>
T* raw_pointer_cast(const device_ptr<T>& p) {
  return p.get();
}
auto* raw_pointer_cast(auto* p) { return p; }
template <class T>
auto raw_pointer_cast(__gnu_cxx::__normal_iterator<T*, std::vector<T>> p) {
  return &*p;
}
template <class T>
T& raw_reference_cast(const device_reference<T>& r) {
  return *r.p;
}
template <class T>
device_ptr<T> device_malloc(size_t n) {
  T* p = nullptr;
  if (cudaMalloc(&p, n * sizeof(T)) != cudaSuccess) throw std::bad_alloc();
  return device_ptr<T>(p);
}
inline device_ptr<void> device_malloc(size_t n) { return {device_malloc<char>(n).get()}; }
void device_free(const auto& p) { cudaFree(p.get()); }
template <class T>
struct device_allocator {
  using value_type = T;
  using pointer = device_ptr<T>;
  pointer allocate(size_t n) { return device_malloc<T>(n); }
  void deallocate(pointer p, size_t) { device_free(p); }
};

// --- iterators -----------------------------------------------------------------------------------

template <class T, class... More>
struct counting_iterator : Iterator<counting_iterator<T, More...>, T, T> {
  T first{};
  counting_iterator() = default;
  explicit counting_iterator(T from) : first(from) {}
  T at(std::ptrdiff_t i) const { return static_cast<T>(first + i); }
  std::ptrdiff_t from(const counting_iterator& o) const {
    return static_cast<std::ptrdiff_t>(first) - static_cast<std::ptrdiff_t>(o.first);
  }
};
auto make_counting_iterator(auto from) { return counting_iterator(from); }
template <class T, class... More>
struct constant_iterator : Iterator<constant_iterator<T, More...>, T, T> {
  T value{};
  constant_iterator() = default;
  explicit constant_iterator(T v, std::ptrdiff_t i = 0) : value(v) { this->n = i; }
  T at(std::ptrdiff_t) const { return value; }
};
auto make_constant_iterator(auto value, std::ptrdiff_t i = 0) {
  return constant_iterator(value, i);
}
template <class F, class I, class... More>
struct transform_iterator
    : Iterator<transform_iterator<F, I, More...>,
               std::invoke_result_t<F, typename std::iterator_traits<I>::value_type>,
               std::invoke_result_t<F, typename std::iterator_traits<I>::value_type>> {
  I base_;
  mutable F f;  // its call may be non-const
  transform_iterator() = default;
  transform_iterator(I i, F function) : base_(i), f(function) {}
  explicit transform_iterator(I i) : base_(i), f() {}
  auto at(std::ptrdiff_t i) const -> typename transform_iterator::reference { return f(base_[i]); }
  std::ptrdiff_t from(const transform_iterator& o) const { return base_ - o.base_; }
  I base() const { return base_ + this->n; }
};
template <class F, class I>
transform_iterator<F, I> make_transform_iterator(I i, F f) {
  return {i, f};
}
template <class I, class Index>
struct permutation_iterator
    : Iterator<permutation_iterator<I, Index>, typename std::iterator_traits<I>::value_type,
               typename std::iterator_traits<I>::reference> {
  I base;
  Index index;
  permutation_iterator() = default;
  permutation_iterator(I i, Index k) : base(i), index(k) {}
  typename std::iterator_traits<I>::reference at(std::ptrdiff_t i) const {
    return base[static_cast<std::ptrdiff_t>(index[i])];
  }
  std::ptrdiff_t from(const permutation_iterator& o) const { return index - o.index; }
};
auto make_permutation_iterator(auto i, auto index) { return permutation_iterator(i, index); }
template <class Tuple>
struct zip_iterator;
template <class... I>
struct zip_iterator<std::tuple<I...>>
    : Iterator<zip_iterator<std::tuple<I...>>,
               std::tuple<typename std::iterator_traits<I>::value_type...>,
               std::tuple<typename std::iterator_traits<I>::reference...>> {
  std::tuple<I...> all;
  zip_iterator() = default;
  zip_iterator(std::tuple<I...> t) : all(t) {}
  explicit zip_iterator(I... i) : all(i...) {}
  auto at(std::ptrdiff_t k) const {
    return std::apply(
        [k](const I&... i) {
          return std::tuple<typename std::iterator_traits<I>::reference...>(i[k]...);
        },
        all);
  }
  std::ptrdiff_t from(const zip_iterator& o) const { return std::get<0>(all) - std::get<0>(o.all); }
  std::tuple<I...> get_iterator_tuple() const {
    return std::apply([this](const I&... i) { return std::tuple<I...>(i + this->n...); }, all);
  }
};
template <class... I>
zip_iterator<std::tuple<I...>> make_zip_iterator(std::tuple<I...> t) {
  return {t};
}
template <class... I>
zip_iterator<std::tuple<I...>> make_zip_iterator(I... i) {
  return {std::tuple<I...>(i...)};
}
/// Applies f to what is written.
template <class F, class I>
struct transform_output_iterator
    : Iterator<transform_output_iterator<F, I>, void, transform_output_iterator<F, I>> {
  I base;
  F f;
  transform_output_iterator(I i, F function) : base(i), f(function) {}
  transform_output_iterator at(std::ptrdiff_t i) const { return {base + i, f}; }
  template <class T>
  requires(!std::is_same_v<T, transform_output_iterator>) void operator=(const T& v) {
    *base = f(v);
  }
};
template <class F, class I>
transform_output_iterator<F, I> make_transform_output_iterator(I i, F f) {
  return {i, f};
}
struct discard_iterator : Iterator<discard_iterator, int, decltype(std::ignore)&> {
  decltype(std::ignore)& at(std::ptrdiff_t) const {
    static std::remove_const_t<decltype(std::ignore)> nobody;
    return nobody;
  }
};
template <class T = int>
discard_iterator make_discard_iterator(T = {}) {
  return {};
}
template <class I>
using reverse_iterator = std::reverse_iterator<I>;
using std::make_reverse_iterator;
auto zip_function(auto f) {
  return [f](const auto& t) { return std::apply(f, t); };
}
auto make_zip_function(auto f) { return zip_function(f); }
using std::advance, std::distance, std::next, std::prev;

// Inside an algorithm device memory is plain memory.
auto raw(const auto& i) { return i; }
template <class T>
T* raw(const device_ptr<T>& p) {
  return p.get();
}
template <class... I>
auto raw(const zip_iterator<std::tuple<I...>>& z);
template <class I, class K>
auto raw(const permutation_iterator<I, K>& p);
template <class F, class I>
auto raw(const transform_output_iterator<F, I>& t) {
  auto base = raw(t.base + t.n);
  return transform_output_iterator<F, decltype(base)>(base, t.f);
}
template <class F, class I, class... More>
auto raw(const transform_iterator<F, I, More...>& t) {
  auto base = raw(t.base());
  return transform_iterator<F, decltype(base)>(base, t.f);
}
template <class I, class K>
auto raw(const permutation_iterator<I, K>& p) {
  auto base = raw(p.base);
  auto index = raw(p.index + p.n);
  return permutation_iterator<decltype(base), decltype(index)>(base, index);
}
template <class... I>
auto raw(const zip_iterator<std::tuple<I...>>& z) {
  return std::apply([](const I&... i) { return make_zip_iterator(std::make_tuple(raw(i)...)); },
                    z.get_iterator_tuple());
}
template <class I>
auto raw(const std::reverse_iterator<I>& r) {
  return std::make_reverse_iterator(raw(r.base()));
}

template <class I>
using ValueOf = typename std::iterator_traits<I>::value_type;

// --- vectors -------------------------------------------------------------------------------------

template <class T, class A = device_allocator<T>>
class device_vector;

template <class T, class A = std::allocator<T>>
class host_vector : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  host_vector() = default;
  host_vector(const std::vector<T>& v) : std::vector<T>(v) {}
  template <class U, class B>
  host_vector(const device_vector<U, B>& v) {
    *this = v;
  }
  template <class U>
  host_vector(device_ptr<U> begin, device_ptr<U> end) {
    const Library library("Thrust");
    this->assign(begin.get(), end.get());
  }
  template <class U, class B>
  host_vector& operator=(const device_vector<U, B>& v) {
    const Library library("Thrust");
    this->assign(v.data().get(), v.data().get() + v.size());
    return *this;
  }
};

template <class T, class A>
class device_vector {
 public:
  using value_type = T;
  using size_type = size_t;
  using difference_type = std::ptrdiff_t;
  using pointer = device_ptr<T>;
  using iterator = device_ptr<T>;
  using const_iterator = device_ptr<const T>;
  using reference = device_reference<T>;
  using const_reference = device_reference<const T>;
  device_vector() = default;
  explicit device_vector(size_t n, const T& v = {}) { resize(n, v); }
  device_vector(const device_vector& v) { assign(v.begin(), v.end()); }
  device_vector(device_vector&& v) { swap(v); }
  template <class U>
  device_vector(const std::vector<U>& v) {
    assign(v.begin(), v.end());
  }
  template <class U, class B>
  explicit device_vector(const device_vector<U, B>& v) {
    assign(v.begin(), v.end());
  }
  device_vector(std::initializer_list<T> v) { assign(v.begin(), v.end()); }
  template <class I>
  requires(!std::is_arithmetic_v<I>) device_vector(I first, I last) { assign(first, last); }
  ~device_vector() {
    if (start) cudaFree(start);
  }
  device_vector& operator=(const device_vector& v) { return assign(v.begin(), v.end()), *this; }
  device_vector& operator=(device_vector&& v) { return swap(v), *this; }
  template <class U>
  device_vector& operator=(const std::vector<U>& v) {
    return assign(v.begin(), v.end()), *this;
  }
  device_vector& operator=(std::initializer_list<T> v) { return assign(v.begin(), v.end()), *this; }
  template <class I>
  void assign(I first, I last) requires(!std::is_arithmetic_v<I>) {
    const Library library("Thrust");
    const auto from = raw(first);
    const auto n = static_cast<size_t>(std::distance(first, last));
    T* old = n > room ? reallocate(n, 0) : nullptr;
    auto it = from;
    for (size_t i = 0; i < n; ++i, ++it) start[i] = static_cast<T>(*it);
    count = n;
    if (old) cudaFree(old);
  }
  void assign(size_t n, const T& v) { clear(), resize(n, v); }
  void resize(size_t n, const T& v = {}) {
    const Library library("Thrust");
    if (n > room) reserve(n);
    for (size_t i = count; i < n; ++i) start[i] = v;
    count = n;
  }
  void reserve(size_t n) {
    const Library library("Thrust");
    if (n <= room) return;
    if (T* old = reallocate(n, count)) cudaFree(old);
  }
  void push_back(const T& v) {
    if (count == room) reserve(std::max<size_t>(2 * room, 16));
    resize(count + 1, v);
  }
  void emplace_back(auto&&... v) { push_back(T(v...)); }
  void pop_back() { --count; }
  void clear() { count = 0; }
  void shrink_to_fit() {}
  iterator erase(iterator first, iterator last) {
    const Library library("Thrust");
    T* to = first.get();
    for (T* p = last.get(); p != start + count; ++p) *to++ = *p;
    count = static_cast<size_t>(to - start);
    return first;
  }
  iterator erase(iterator at) { return erase(at, at + 1); }
  template <class I>
  void insert(iterator at, I first, I last) requires(!std::is_arithmetic_v<I>) {
    host_vector<T> all(*this), more(first, last);
    all.insert(all.begin() + (at - begin()), more.begin(), more.end());
    *this = all;
  }
  void swap(device_vector& v) {
    std::swap(start, v.start), std::swap(count, v.count), std::swap(room, v.room);
  }
  size_t size() const { return count; }
  size_t capacity() const { return room; }
  bool empty() const { return count == 0; }
  pointer data() { return pointer(start); }
  device_ptr<const T> data() const { return device_ptr<const T>(start); }
  iterator begin() { return data(); }
  iterator end() { return data() + count; }
  const_iterator begin() const { return data(); }
  const_iterator end() const { return data() + count; }
  const_iterator cbegin() const { return data(); }
  const_iterator cend() const { return data() + count; }
  auto rbegin() { return std::make_reverse_iterator(end()); }
  auto rend() { return std::make_reverse_iterator(begin()); }
  reference operator[](size_t i) { return {start + i}; }
  const_reference operator[](size_t i) const { return {start + i}; }
  reference front() { return {start}; }
  reference back() { return {start + count - 1}; }
  const_reference front() const { return {start}; }
  const_reference back() const { return {start + count - 1}; }
  friend bool operator==(const device_vector& a, const device_vector& b) {
    return a == host_vector<T>(b);
  }
  friend bool operator==(const device_vector& a, const std::vector<T>& b) {
    const std::vector<T>& mine = host_vector<T>(a);
    return mine == b;
  }

 private:
  /// \returns the old memory, of which the first `kept` elements are copied
  T* reallocate(size_t n, size_t kept) {
    T* old = start;
    start = device_malloc<T>(n).get();
    for (size_t i = 0; i < kept; ++i) start[i] = old[i];
    room = n;
    return old;
  }
  T* start = nullptr;
  size_t count = 0, room = 0;
};

// --- algorithms ----------------------------------------------------------------------------------

#define SIM_THRUST const Library library("Thrust")
/// Converts a place in plain memory to the caller's kind of iterator.
template <class I, class R>
I back(const I& first, const R& result) {
  return first + (result - raw(first));
}
/// Calls f(elements of all ranges) for each of [first, last).
template <class F, class I, class... J>
void walk(F f, I first, I last, J... more) {
  SIM_THRUST;
  const auto begin = raw(first), end = raw(last);
  const auto each = [&](auto i, auto... j) {
    for (; i != end; ++i, (++j, ...)) f(*i, *j...);
  };
  each(begin, raw(more)...);
}

template <class I, class F>
I for_each(I first, I last, F f) {
  walk([&](auto&& x) { f(x); }, first, last);
  return last;
}
template <class I, class N, class F>
I for_each_n(I first, N n, F f) {
  return thrust::for_each(first, first + n, f);
}
template <class I, class J>
J swap_ranges(I first, I last, J other) {
  const auto one = [](auto&& x, auto&& y) {
    const ValueOf<I> old = x;
    x = y, y = old;
  };
  walk(one, first, last, other);
  return other + (last - first);
}
template <class I, class O, class F>
O transform(I first, I last, O out, F f) {
  walk([&](auto&& x, auto&& to) { to = f(x); }, first, last, out);
  return out + (last - first);
}
template <class I, class J, class O, class F>
O transform(I first, I last, J other, O out, F f) {
  walk([&](auto&& x, auto&& y, auto&& to) { to = f(x, y); }, first, last, other, out);
  return out + (last - first);
}
template <class I, class J, class O, class F, class P>
O transform_if(I first, I last, J stencil, O out, F f, P wanted) {
  const auto one = [&](auto&& x, auto&& y, auto&& to) {
    if (wanted(y)) to = f(x);
  };
  walk(one, first, last, stencil, out);
  return out + (last - first);
}
template <class I, class O>
O copy(I first, I last, O out) {
  SIM_THRUST;
  const auto end = std::copy(raw(first), raw(last), raw(out));
  if constexpr (requires { out + (end - raw(out)); })
    return back(out, end);
  else
    return out;  // of a stream
}
template <class I, class N, class O>
O copy_n(I first, N n, O out) {
  return thrust::copy(first, first + n, out);
}
template <class I, class O>
O uninitialized_copy(I first, I last, O out) {
  return thrust::copy(first, last, out);
}
template <class I, class N, class O>
O uninitialized_copy_n(I first, N n, O out) {
  return thrust::copy(first, first + n, out);
}
template <class I, class J, class O, class P>
O copy_if(I first, I last, J stencil, O out, P wanted) {
  auto to = raw(out);
  const auto one = [&](auto&& x, auto&& y) {
    if (wanted(y)) *to = x, ++to;
  };
  walk(one, first, last, stencil);
  return back(out, to);
}
template <class I, class O, class P>
O copy_if(I first, I last, O out, P wanted) {
  return thrust::copy_if(first, last, first, out, wanted);
}
template <class I, class T>
void fill(I first, I last, const T& v) {
  walk([&](auto&& x) { x = v; }, first, last);
}
template <class I, class N, class T>
I fill_n(I first, N n, const T& v) {
  thrust::fill(first, first + n, v);
  return first + n;
}
template <class I, class T>
void uninitialized_fill(I first, I last, const T& v) {
  thrust::fill(first, last, v);
}
template <class I, class N, class T>
I uninitialized_fill_n(I first, N n, const T& v) {
  return thrust::fill_n(first, n, v);
}
template <class I, class F>
void tabulate(I first, I last, F f) {
  walk([&](auto&& x, auto i) { x = f(i); }, first, last, counting_iterator<std::ptrdiff_t>(0));
}
template <class I, class T = ValueOf<I>, class S = T>
void sequence(I first, I last, T from = {}, S step = S(1)) {
  thrust::tabulate(first, last, [=](auto i) { return from + static_cast<ValueOf<I>>(step * i); });
}
template <class I, class F>
void generate(I first, I last, F f) {
  walk([&](auto&& x) { x = f(); }, first, last);
}
template <class I, class N, class F>
I generate_n(I first, N n, F f) {
  thrust::generate(first, first + n, f);
  return first + n;
}
template <class I, class P, class T>
void replace_if(I first, I last, P wanted, const T& v) {
  walk([&](auto&& x) { x = wanted(x) ? v : x; }, first, last);
}
template <class I, class T>
void replace(I first, I last, const T& from, const T& to) {
  thrust::replace_if(
      first, last, [from](const auto& v) { return v == from; }, to);
}
template <class K, class I, class O>
O gather(K first, K last, I in, O out) {
  return thrust::transform(first, last, out, [from = raw(in)](auto k) { return from[k]; });
}
template <class I, class K, class O>
void scatter(I first, I last, K map, O out) {
  thrust::copy(first, last, make_permutation_iterator(out, map));
}
template <class I, class K, class S, class O>
void scatter_if(I first, I last, K map, S stencil, O out) {
  thrust::transform_if(first, last, stencil, make_permutation_iterator(out, map), identity<>(),
                       identity<>());
}

/// Pairwise: the error of a sum grows as on a GPU.
template <class T, class I, class F>
T folded(I i, std::ptrdiff_t n, F& f) {
  if (n > 32) {
    const std::ptrdiff_t half = n / 2;
    return f(folded<T>(i, half, f), folded<T>(i + half, n - half, f));
  }
  T sum = *i;
  for (std::ptrdiff_t k = 1; k < n; ++k) sum = f(sum, i[k]);
  return sum;
}
template <class I, class T, class F>
T reduce(I first, I last, T init, F f) {
  SIM_THRUST;
  const std::ptrdiff_t n = raw(last) - raw(first);
  return n ? static_cast<T>(f(init, folded<T>(raw(first), n, f))) : init;
}
template <class I, class T = ValueOf<I>>
T reduce(I first, I last, T init = {}) {
  return thrust::reduce(first, last, init, plus<T>());
}
template <class I, class F, class T, class G>
T transform_reduce(I first, I last, F f, T init, G g) {
  return thrust::reduce(make_transform_iterator(raw(first), f),
                        make_transform_iterator(raw(last), f), init, g);
}
template <class I, class J, class T, class F, class G>
T inner_product(I first, I last, J other, T init, F sum, G product) {
  const auto f = [product](const auto& t) mutable {
    return product(std::get<0>(t), std::get<1>(t));
  };
  const auto begin = make_zip_iterator(raw(first), raw(other));
  return thrust::transform_reduce(begin, begin + (last - first), f, init, sum);
}
template <class I, class J, class T>
T inner_product(I first, I last, J other, T init) {
  return thrust::inner_product(first, last, other, init, plus<T>(), multiplies<T>());
}
template <class I, class P>
std::ptrdiff_t count_if(I first, I last, P wanted) {
  std::ptrdiff_t n = 0;
  walk([&](auto&& x) { n += wanted(x) ? 1 : 0; }, first, last);
  return n;
}
template <class I, class T>
std::ptrdiff_t count(I first, I last, const T& v) {
  return thrust::count_if(first, last, [&v](const auto& x) { return x == v; });
}
template <class K, class V, class KO, class VO, class Same = equal_to<>, class F = plus<>>
pair<KO, VO> reduce_by_key(K first, K last, V values, KO keys_out, VO values_out, Same same = {},
                           F f = {}) {
  SIM_THRUST;
  auto k = raw(first), end = raw(last);
  auto v = raw(values);
  auto key = raw(keys_out);
  auto to = raw(values_out);
  while (k != end) {
    const ValueOf<K> first_key = *k;
    ValueOf<V> sum = *v;
    for (++k, ++v; k != end && same(first_key, ValueOf<K>(*k)); ++k, ++v) sum = f(sum, *v);
    *key = first_key, *to = sum;
    ++key, ++to;
  }
  return {back(keys_out, key), back(values_out, to)};
}
/// Both kinds of scan, with or without keys: in an exclusive one each run starts with `init`.
template <bool kExclusive, class I, class O, class T, class F, class Begins>
O scanned(I first, I last, O out, T init, F f, Begins begins) {
  SIM_THRUST;
  auto begin = raw(first), end = raw(last);
  auto to = raw(out);
  T sum = init;
  for (auto i = begin; i != end; ++i, ++to) {
    const T v = *i;  // `out` may be `first`
    const bool fresh = begins(i - begin);
    if (kExclusive) {
      if (fresh) sum = init;
      *to = sum;
      sum = f(sum, v);
    } else {
      sum = fresh ? v : static_cast<T>(f(sum, v));
      *to = sum;
    }
  }
  return back(out, to);
}
template <class I, class O, class F = plus<>>
O inclusive_scan(I first, I last, O out, F f = {}) {
  return scanned<false>(first, last, out, ValueOf<I>(), f, [](auto i) { return i == 0; });
}
template <class I, class O, class T = ValueOf<I>, class F = plus<>>
O exclusive_scan(I first, I last, O out, T init = {}, F f = {}) {
  return scanned<true>(first, last, out, init, f, [](auto i) { return i == 0; });
}
auto begins_at(auto first, auto same) {
  return [k = raw(first), same](auto i) mutable { return i == 0 || !same(k[i - 1], k[i]); };
}
template <class K, class V, class O, class Same = equal_to<>, class F = plus<>>
O inclusive_scan_by_key(K first, K last, V values, O out, Same same = {}, F f = {}) {
  return scanned<false>(values, values + (last - first), out, ValueOf<V>(), f,
                        begins_at(first, same));
}
template <class K, class V, class O, class T = ValueOf<V>, class Same = equal_to<>,
          class F = plus<>>
O exclusive_scan_by_key(K first, K last, V values, O out, T init = {}, Same same = {}, F f = {}) {
  return scanned<true>(values, values + (last - first), out, init, f, begins_at(first, same));
}
template <class I, class O, class F = minus<>>
O adjacent_difference(I first, I last, O out, F f = {}) {
  SIM_THRUST;
  return back(out, std::adjacent_difference(raw(first), raw(last), raw(out), f));
}

// Sorts copies, which also works for zipped iterators.
template <class I, class Less = thrust::less<>>
void stable_sort(I first, I last, Less less = {}) {
  SIM_THRUST;
  std::vector<ValueOf<I>> all(raw(first), raw(last));
  std::stable_sort(all.begin(), all.end(), less);
  thrust::copy(all.begin(), all.end(), first);
}
template <class K, class V, class Less = thrust::less<>>
void stable_sort_by_key(K first, K last, V values, Less less = {}) {
  SIM_THRUST;
  const std::vector<ValueOf<K>> keys(raw(first), raw(last));
  const auto v = raw(values);
  const std::vector<ValueOf<V>> old(v, v + static_cast<std::ptrdiff_t>(keys.size()));
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return less(keys[a], keys[b]); });
  auto k = raw(first);
  for (size_t i = 0; i < order.size(); ++i) k[i] = keys[order[i]], v[i] = old[order[i]];
}
template <class K, class V, class Less = thrust::less<>>
void sort_by_key(K first, K last, V values, Less less = {}) {
  thrust::stable_sort_by_key(first, last, values, less);
}
template <class I, class Less = thrust::less<>>
void sort(I first, I last, Less less = {}) {
  thrust::stable_sort(first, last, less);
}

/// Keeps the elements for which keep(i, previous kept, element) holds; returns how many.
template <class I, class O, class Keep>
O kept(I first, I last, O out, Keep keep) {
  auto begin = raw(first), end = raw(last);
  auto to = raw(out);
  for (auto i = begin; i != end; ++i) {
    const ValueOf<I> v = *i;
    if (keep(i - begin, v)) *to = v, ++to;
  }
  return back(out, to);
}
template <class I, class P>
I remove_if(I first, I last, P unwanted) {
  SIM_THRUST;
  return thrust::kept(first, last, first, [&](auto, const auto& v) { return !unwanted(v); });
}
template <class I, class S, class P>
I remove_if(I first, I last, S stencil, P unwanted) {
  SIM_THRUST;
  return thrust::kept(first, last, first,
                      [&, s = raw(stencil)](auto i, const auto&) { return !unwanted(s[i]); });
}
template <class I, class T>
I remove(I first, I last, const T& value) {
  return thrust::remove_if(first, last, [&](const auto& v) { return v == value; });
}
template <class I, class Same = equal_to<>>
I unique(I first, I last, Same same = {}) {
  SIM_THRUST;
  ValueOf<I> previous{};
  return thrust::kept(first, last, first, [&](auto i, const auto& v) {
    const bool fresh = i == 0 || !same(previous, v);
    previous = v;
    return fresh;
  });
}
template <class K, class V, class Same = equal_to<>>
pair<K, V> unique_by_key(K first, K last, V values, Same same = {}) {
  const auto take_first = [](const auto& a, const auto&) { return a; };
  return thrust::reduce_by_key(first, last, values, first, values, same, take_first);
}
template <class I, class P>
I partition(I first, I last, P wanted) {
  SIM_THRUST;
  std::vector<ValueOf<I>> all(raw(first), raw(last));
  const auto n = std::stable_partition(all.begin(), all.end(), wanted) - all.begin();
  thrust::copy(all.begin(), all.end(), first);
  return first + n;
}

// The standard library's, which return an iterator into the first range.
#define SIM_SEARCH(name)                                        \
  template <class I, class... A>                                \
  I name(I first, I last, const A&... a) {                      \
    SIM_THRUST;                                                 \
    return back(first, std::name(raw(first), raw(last), a...)); \
  }
SIM_SEARCH(find)
SIM_SEARCH(find_if)
SIM_SEARCH(find_if_not)
SIM_SEARCH(min_element)
SIM_SEARCH(max_element)
#undef SIM_SEARCH
template <class I, class... A>
pair<I, I> minmax_element(I first, I last, A... a) {
  SIM_THRUST;
  const auto found = std::minmax_element(raw(first), raw(last), a...);
  return {back(first, found.first), back(first, found.second)};
}
#define SIM_QUESTION(name)                              \
  template <class I, class... A>                        \
  bool name(I first, I last, const A&... a) {           \
    SIM_THRUST;                                         \
    return std::name(raw(first), raw(last), raw(a)...); \
  }
SIM_QUESTION(all_of)
SIM_QUESTION(any_of)
SIM_QUESTION(none_of)
SIM_QUESTION(equal)
SIM_QUESTION(is_sorted)
#undef SIM_QUESTION
// One value gives an iterator; a range of values gives a range of indices.
#define SIM_BOUND(name, One, one, each)                                    \
  template <class I, class V, class O, class Less = thrust::less<>>        \
  O name(I first, I last, V values, V values_end, O out, Less less = {}) { \
    SIM_THRUST;                                                            \
    const auto begin = raw(first), end = raw(last);                        \
    return thrust::transform(values, values_end, out, [&](const auto& v) { \
      const auto found = std::name(begin, end, v, less);                   \
      return each;                                                         \
    });                                                                    \
  }                                                                        \
  template <class I, class T, class Less = thrust::less<>>                 \
  One name(I first, I last, const T& v, Less less = {}) {                  \
    SIM_THRUST;                                                            \
    const auto found = std::name(raw(first), raw(last), v, less);          \
    return one;                                                            \
  }
SIM_BOUND(lower_bound, I, back(first, found), found - begin)
SIM_BOUND(upper_bound, I, back(first, found), found - begin)
SIM_BOUND(binary_search, bool, found, found)
#undef SIM_BOUND
#define SIM_OF_SETS(name)                                                                      \
  template <class I, class J, class O, class... A>                                             \
  O name(I first, I last, J other, J other_end, O out, A... a) {                               \
    SIM_THRUST;                                                                                \
    return back(out,                                                                           \
                std::name(raw(first), raw(last), raw(other), raw(other_end), raw(out), a...)); \
  }
SIM_OF_SETS(merge)
SIM_OF_SETS(set_union)
SIM_OF_SETS(set_intersection)
SIM_OF_SETS(set_difference)
SIM_OF_SETS(set_symmetric_difference)
#undef SIM_OF_SETS
template <class I>
void reverse(I first, I last) {
  SIM_THRUST;
  const std::vector<ValueOf<I>> all(raw(first), raw(last));
  thrust::copy(all.rbegin(), all.rend(), first);
}
template <class I, class O>
O reverse_copy(I first, I last, O out) {
  const O end = thrust::copy(first, last, out);
  thrust::reverse(out, end);
  return end;
}
template <class I, class O, class P>
O remove_copy_if(I first, I last, O out, P unwanted) {
  return thrust::copy_if(first, last, out, [&](const auto& v) { return !unwanted(v); });
}
template <class I, class O, class T>
O remove_copy(I first, I last, O out, const T& value) {
  return thrust::copy_if(first, last, out, [&](const auto& v) { return !(v == value); });
}
// With an execution policy as first argument.
#define SIM_POLICY(name)                                                   \
  template <class P, class... A>                                           \
  requires(std::is_convertible_v<P, Policy>) auto name(const P&, A... a) { \
    return thrust::name(a...);                                             \
  }
#define SIM_POLICIES(a, b, c, d, e, f) \
  SIM_POLICY(a) SIM_POLICY(b) SIM_POLICY(c) SIM_POLICY(d) SIM_POLICY(e) SIM_POLICY(f)
SIM_POLICIES(for_each, transform, transform_if, copy, copy_if, fill)
SIM_POLICIES(fill_n, tabulate, sequence, generate, replace, reverse)
SIM_POLICIES(gather, scatter, scatter_if, reduce, transform_reduce, inner_product)
SIM_POLICIES(count, count_if, reduce_by_key, inclusive_scan, exclusive_scan, adjacent_difference)
SIM_POLICIES(sort, stable_sort, sort_by_key, stable_sort_by_key, remove, remove_if)
SIM_POLICIES(inclusive_scan_by_key, exclusive_scan_by_key, unique, unique_by_key, partition, merge)
SIM_POLICIES(find, find_if, find_if_not, min_element, max_element, minmax_element)
SIM_POLICIES(all_of, any_of, none_of, equal, is_sorted, binary_search)
SIM_POLICIES(lower_bound, upper_bound, set_union, set_intersection, set_difference, replace_if)
SIM_POLICIES(copy_n, for_each_n, generate_n, swap_ranges, remove_copy_if, set_symmetric_difference)
SIM_POLICIES(uninitialized_copy, uninitialized_copy_n, uninitialized_fill, uninitialized_fill_n,
             reverse_copy, remove_copy)
#undef SIM_POLICIES
#undef SIM_POLICY
#undef SIM_THRUST

// --- random numbers, by Thrust's formulas --------------------------------------------------------

inline namespace random {
using default_random_engine = std::minstd_rand;
template <class T = double>
struct uniform_real_distribution {
  T a, b;
  explicit uniform_real_distribution(T from = 0, T to = 1) : a(from), b(to) {}
  template <class G>
  T operator()(G& g) const {
    const T unit = static_cast<T>(g() - G::min()) / (static_cast<T>(G::max() - G::min()) + 1);
    return unit * (b - a) + a;
  }
};
template <class T = int>
struct uniform_int_distribution {
  T a, b;
  explicit uniform_int_distribution(T from = 0, T to = std::numeric_limits<T>::max())
      : a(from), b(to) {}
  template <class G>
  T operator()(G& g) const {
    uniform_real_distribution<double> real(static_cast<double>(a), static_cast<double>(b) + 1);
    return static_cast<T>(real(g));
  }
};
template <class T = double>
struct normal_distribution {
  T mean, deviation;
  explicit normal_distribution(T m = 0, T d = 1) : mean(m), deviation(d) {}
  template <class G>
  T operator()(G& g) const {
    uniform_real_distribution<double> real(0, 1);
    const double u = 1 - real(g);
    const double v = real(g);
    return static_cast<T>(mean + deviation * std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v));
  }
};
}  // namespace random

}  // namespace thrust
