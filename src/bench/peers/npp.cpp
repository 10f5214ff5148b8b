// NPP as a contender of `convoy bench --peers`: the protocol of `process.rs`, compiled on the machine that it runs on.
//
// Timed as our kernels are: inputs and outputs rotate over four times the L2, a CUDA graph replays one pass over all of
// them, events take the time. Usage: npp DEVICE
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <cuda_runtime.h>
#include <npp.h>

namespace {

void must(cudaError_t status, const char* what) {
    if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

void must(NppStatus status, const std::string& what) {
    // Warnings are positive.
    if (status < NPP_SUCCESS) throw std::runtime_error(what + ": NPP status " + std::to_string(static_cast<int>(status)));
}

class Memory {
  public:
    explicit Memory(size_t bytes) : bytes_(bytes) { must(cudaMalloc(&at_, bytes), "cudaMalloc"); }
    Memory(Memory&& other) noexcept : at_(other.at_), bytes_(other.bytes_) { other.at_ = nullptr; }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    Memory& operator=(Memory&&) = delete;
    ~Memory() { cudaFree(at_); }
    template <class T> T* as() const { return static_cast<T*>(at_); }
    size_t bytes() const { return bytes_; }

  private:
    void* at_ = nullptr;
    size_t bytes_;
};

/// A filter on set `i`.
using Filter = std::function<NppStatus(int)>;

struct Prepared {
    Filter filter;
    cudaGraphExec_t graph = nullptr;
};

class Server {
  public:
    explicit Server(int device) {
        must(cudaSetDevice(device), "cudaSetDevice");
        must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
        must(cudaEventCreate(&start_), "cudaEventCreate");
        must(cudaEventCreate(&end_), "cudaEventCreate");
        cudaDeviceProp device_is;
        must(cudaGetDeviceProperties(&device_is, device), "cudaGetDeviceProperties");
        l2_ = std::max<size_t>(device_is.l2CacheSize, 4 << 20);
        context_.hStream = stream_;
        context_.nCudaDeviceId = device;
        context_.nMultiProcessorCount = device_is.multiProcessorCount;
        context_.nMaxThreadsPerMultiProcessor = device_is.maxThreadsPerMultiProcessor;
        context_.nMaxThreadsPerBlock = device_is.maxThreadsPerBlock;
        context_.nSharedMemPerBlock = device_is.sharedMemPerBlock;
        context_.nCudaDevAttrComputeCapabilityMajor = device_is.major;
        context_.nCudaDevAttrComputeCapabilityMinor = device_is.minor;
        context_.nStreamFlags = cudaStreamNonBlocking;
    }

    std::string answer(const std::string& line) {
        std::istringstream words(line);
        std::string word, argument;
        words >> word >> argument;
        if (word == "load") {
            std::string shape, path;
            words >> shape >> path;
            return "ok " + std::to_string(load(argument, shape, path));
        }
        std::string call;
        std::getline(words >> std::ws, call);
        if (word == "check") {
            check(call, argument);
            return "ok";
        }
        if (word == "time") return std::to_string(measure(call, std::stoul(argument)));
        throw std::runtime_error("unknown word '" + word + "'");
    }

  private:
    size_t load(const std::string& kind, const std::string& shape, const std::string& path) {
        for (auto& [call, prepared] : prepared_) cudaGraphExecDestroy(prepared.graph);
        prepared_.clear();
        kept_.clear();
        inputs_.clear();
        outputs_.clear();
        if (kind != "uint8" && kind != "float32") throw std::runtime_error("no samples of type " + kind);
        floats_ = kind == "float32";
        const size_t sample = floats_ ? 4 : 1;
        char times = 0;
        std::istringstream(shape) >> size_.height >> times >> size_.width;
        row_ = size_.width * sample;
        pitch_ = static_cast<int>((row_ + 511) / 512 * 512);
        std::vector<char> data(row_ * size_.height);
        if (!std::ifstream(path, std::ios::binary).read(data.data(), static_cast<std::streamsize>(data.size())))
            throw std::runtime_error("cannot read " + path);
        const size_t bytes = static_cast<size_t>(pitch_) * size_.height;
        const size_t sets = std::clamp<size_t>((4 * l2_ + 2 * bytes - 1) / (2 * bytes), 8, 256);
        for (size_t i = 0; i < sets; i++) {
            inputs_.emplace_back(bytes);
            // A magnitude of 8-bit samples has 16 bits.
            outputs_.emplace_back(2 * bytes);
            // Neighbours differ: rows are rolled.
            const size_t shift = 17 * i % size_.height;
            for (size_t part = 0; part < 2; part++) {
                const size_t from = part == 0 ? size_.height - shift : 0, rows = part == 0 ? shift : size_.height - shift;
                const size_t to = part == 0 ? 0 : shift;
                if (rows > 0)
                    must(cudaMemcpy2D(inputs_[i].as<char>() + to * pitch_, pitch_, data.data() + from * row_, row_, row_, rows, cudaMemcpyHostToDevice), "upload");
            }
        }
        return sets;
    }

    template <class T> Filter filter(std::istringstream& words) {
        constexpr bool bytes = std::is_same_v<T, Npp8u>;
        std::string name;
        int k = 0;
        words >> name >> k;
        std::vector<float> numbers;
        for (float v; words >> v;) numbers.push_back(v);
        const NppiSize size = size_, window = {k, k};
        const NppiPoint zero = {0, 0}, anchor = {k / 2, k / 2};
        const NppiBorderType border = NPP_BORDER_REPLICATE;
        const NppStreamContext context = context_;
        const int pitch = pitch_;
        auto in = [this](int i) { return inputs_[i].as<T>(); };
        auto out = [this](int i) { return outputs_[i].as<T>(); };
        auto wide = [this](int i) { return outputs_[i].as<Npp16s>(); };
        const float* taps = numbers.empty() ? nullptr : upload(numbers);
        if (name == "FilterGaussAdvancedBorder") return [=](int i) {
            if constexpr (bytes) return nppiFilterGaussAdvancedBorder_8u_C1R_Ctx(in(i), pitch, size, zero, out(i), pitch, size, k, taps, border, context);
            else return nppiFilterGaussAdvancedBorder_32f_C1R_Ctx(in(i), pitch, size, zero, out(i), pitch, size, k, taps, border, context);
        };
        if (name == "FilterGaussBorder") {
            const std::map<int, NppiMaskSize> masks = {{3, NPP_MASK_SIZE_3_X_3}, {5, NPP_MASK_SIZE_5_X_5}, {7, NPP_MASK_SIZE_7_X_7}, {9, NPP_MASK_SIZE_9_X_9},
                {11, NPP_MASK_SIZE_11_X_11}, {13, NPP_MASK_SIZE_13_X_13}, {15, NPP_MASK_SIZE_15_X_15}};
            const NppiMaskSize mask = masks.at(k);
            return [=](int i) {
                if constexpr (bytes) return nppiFilterGaussBorder_8u_C1R_Ctx(in(i), pitch, size, zero, out(i), pitch, size, mask, border, context);
                else return nppiFilterGaussBorder_32f_C1R_Ctx(in(i), pitch, size, zero, out(i), pitch, size, mask, border, context);
            };
        }
        if (name == "FilterBorder") return [=](int i) {
            if constexpr (bytes) return nppiFilterBorder32f_8u_C1R_Ctx(in(i), pitch, size, zero, out(i), pitch, size, taps, window, anchor, border, context);
            else return nppiFilterBorder_32f_C1R_Ctx(in(i), pitch, size, zero, out(i), pitch, size, taps, window, anchor, border, context);
        };
        if (name == "FilterBoxBorder") return [=](int i) {
            if constexpr (bytes) return nppiFilterBoxBorder_8u_C1R_Ctx(in(i), pitch, size, zero, out(i), pitch, size, window, anchor, border, context);
            else return nppiFilterBoxBorder_32f_C1R_Ctx(in(i), pitch, size, zero, out(i), pitch, size, window, anchor, border, context);
        };
        if (name == "FilterMaxBorder") return [=](int i) {
            if constexpr (bytes) return nppiFilterMaxBorder_8u_C1R_Ctx(in(i), pitch, size, zero, out(i), pitch, size, window, anchor, border, context);
            else return nppiFilterMaxBorder_32f_C1R_Ctx(in(i), pitch, size, zero, out(i), pitch, size, window, anchor, border, context);
        };
        if (name == "FilterMinBorder") return [=](int i) {
            if constexpr (bytes) return nppiFilterMinBorder_8u_C1R_Ctx(in(i), pitch, size, zero, out(i), pitch, size, window, anchor, border, context);
            else return nppiFilterMinBorder_32f_C1R_Ctx(in(i), pitch, size, zero, out(i), pitch, size, window, anchor, border, context);
        };
        if (name == "FilterMedianBorder") {
            Npp32u need = 0;
            if constexpr (bytes) must(nppiFilterMedianBorderGetBufferSize_8u_C1R_Ctx(size, window, &need, border, context), name);
            else must(nppiFilterMedianBorderGetBufferSize_32f_C1R_Ctx(size, window, &need, border, context), name);
            kept_.emplace_back(std::max<size_t>(need, 1));
            Npp8u* scratch = kept_.back().template as<Npp8u>();
            return [=](int i) {
                if constexpr (bytes) return nppiFilterMedianBorder_8u_C1R_Ctx(in(i), pitch, size, zero, out(i), pitch, size, window, anchor, scratch, border, context);
                else return nppiFilterMedianBorder_32f_C1R_Ctx(in(i), pitch, size, zero, out(i), pitch, size, window, anchor, scratch, border, context);
            };
        }
        if (name == "GradientVectorSobelBorder") return [=](int i) {
            const NppiMaskSize mask = NPP_MASK_SIZE_3_X_3;
            if constexpr (bytes) return nppiGradientVectorSobelBorder_8u16s_C1R_Ctx(in(i), pitch, size, zero, nullptr, 0, nullptr, 0, wide(i), 2 * pitch, nullptr, 0,
                size, mask, nppiNormL2, border, context);
            else return nppiGradientVectorSobelBorder_32f_C1R_Ctx(in(i), pitch, size, zero, nullptr, 0, nullptr, 0, out(i), pitch, nullptr, 0, size, mask, nppiNormL2, border, context);
        };
        throw std::runtime_error("unknown filter '" + name + "'");
    }

    const float* upload(const std::vector<float>& numbers) {
        kept_.emplace_back(numbers.size() * sizeof(float));
        must(cudaMemcpy(kept_.back().as<float>(), numbers.data(), kept_.back().bytes(), cudaMemcpyHostToDevice), "upload of weights");
        return kept_.back().as<float>();
    }

    Prepared& prepare(const std::string& call) {
        const auto found = prepared_.find(call);
        if (found != prepared_.end()) return found->second;
        std::istringstream words(call);
        Filter made = floats_ ? filter<Npp32f>(words) : filter<Npp8u>(words);
        return prepared_.emplace(call, Prepared{made}).first->second;
    }

    void check(const std::string& call, const std::string& path) {
        Prepared& it = prepare(call);
        must(cudaMemset(outputs_[0].as<char>(), 0xA5, outputs_[0].bytes()), "cudaMemset");
        must(it.filter(0), call.substr(0, call.find(' ')));
        must(cudaStreamSynchronize(stream_), "the filter");
        // The magnitude of 8-bit samples comes in 16.
        const bool wide = !floats_ && call.rfind("GradientVector", 0) == 0;
        const size_t row = wide ? 2 * row_ : row_, pitch = wide ? 2 * pitch_ : pitch_;
        std::vector<char> data(row * size_.height);
        must(cudaMemcpy2D(data.data(), row, outputs_[0].as<char>(), pitch, row, size_.height, cudaMemcpyDeviceToHost), "download");
        if (wide) {
            const auto* magnitudes = reinterpret_cast<const int16_t*>(data.data());
            std::vector<char> clamped(row_ * size_.height);
            for (size_t i = 0; i < clamped.size(); i++) clamped[i] = static_cast<char>(std::clamp<int>(magnitudes[i], 0, 255));
            data.swap(clamped);
        }
        if (!std::ofstream(path, std::ios::binary).write(data.data(), static_cast<std::streamsize>(data.size())))
            throw std::runtime_error("cannot write " + path);
    }

    unsigned long long measure(const std::string& call, size_t frames) {
        Prepared& it = prepare(call);
        const int sets = static_cast<int>(inputs_.size());
        if (it.graph == nullptr) {
            cudaGraph_t graph = nullptr;
            must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
            NppStatus status = NPP_SUCCESS;
            for (int i = 0; i < sets && status >= NPP_SUCCESS; i++) status = it.filter(i);
            const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
            must(status, call.substr(0, call.find(' ')));
            must(ended, "recording a graph");
            must(cudaGraphInstantiate(&it.graph, graph, 0), "cudaGraphInstantiate");
            cudaGraphDestroy(graph);
        }
        must(cudaEventRecord(start_, stream_), "cudaEventRecord");
        for (size_t done = 0; done + sets <= frames; done += sets) must(cudaGraphLaunch(it.graph, stream_), "cudaGraphLaunch");
        must(cudaEventRecord(end_, stream_), "cudaEventRecord");
        must(cudaEventSynchronize(end_), "the filter");
        float ms = 0;
        must(cudaEventElapsedTime(&ms, start_, end_), "cudaEventElapsedTime");
        return static_cast<unsigned long long>(1e6 * ms);
    }

    cudaStream_t stream_ = nullptr;
    cudaEvent_t start_ = nullptr, end_ = nullptr;
    NppStreamContext context_ = {};
    size_t l2_ = 0, row_ = 0;
    int pitch_ = 0;
    bool floats_ = false;
    NppiSize size_ = {};
    std::vector<Memory> inputs_, outputs_, kept_;
    std::map<std::string, Prepared> prepared_;
};

std::string one_line(std::string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        Server server(argc > 1 ? std::stoi(argv[1]) : 0);
        const NppLibraryVersion* version = nppGetLibVersion();
        std::cout << "ready " << version->major << "." << version->minor << "." << version->build << std::endl;
        for (std::string line; std::getline(std::cin, line);) {
            try {
                std::cout << server.answer(line) << std::endl;
            } catch (const std::exception& e) {
                std::cout << "error " << one_line(e.what()) << std::endl;
                // After a fault on the device nothing runs in this process any more: another is started.
                if (cudaDeviceSynchronize() != cudaSuccess) return 1;
            }
        }
    } catch (const std::exception& e) {
        std::cout << "absent " << one_line(e.what()) << std::endl;
    }
}
