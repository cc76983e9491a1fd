#include "scan/estimator_names.h"

#include <algorithm>
#include <cstddef>

namespace haulway::scan {

namespace {

struct EstimatorRow {
  std::string_view module;
  std::string_view names;  // Separated by spaces.
};

// From skops 0.16 with scikit-learn 1.9: io/_trusted_types.py, and the losses
// of io/_sklearn.py. Like skops, the table omits trees, because they store
// addresses as numbers.
constexpr EstimatorRow kRows[] = {
    {"sklearn._loss._loss",
     "CyAbsoluteError CyExponentialLoss CyHalfBinomialLoss CyHalfGammaLoss "
     "CyHalfMultinomialLoss CyHalfPoissonLoss CyHalfSquaredError "
     "CyHalfTweedieLoss CyHalfTweedieLossIdentity CyHuberLoss CyPinballLoss"},
    {"sklearn._loss.link",
     "HalfLogitLink IdentityLink Interval LogLink LogitLink MultinomialLogit"},
    {"sklearn._loss.loss",
     "AbsoluteError ExponentialLoss HalfBinomialLoss HalfGammaLoss "
     "HalfMultinomialLoss HalfPoissonLoss HalfSquaredError HuberLoss "
     "PinballLoss"},
    {"sklearn.calibration", "CalibratedClassifierCV"},
    {"sklearn.cluster._affinity_propagation", "AffinityPropagation"},
    {"sklearn.cluster._agglomerative",
     "AgglomerativeClustering FeatureAgglomeration"},
    {"sklearn.cluster._bicluster", "SpectralBiclustering SpectralCoclustering"},
    {"sklearn.cluster._birch", "Birch"},
    {"sklearn.cluster._bisect_k_means", "BisectingKMeans"},
    {"sklearn.cluster._dbscan", "DBSCAN"},
    {"sklearn.cluster._hdbscan.hdbscan", "HDBSCAN"},
    {"sklearn.cluster._kmeans", "KMeans MiniBatchKMeans"},
    {"sklearn.cluster._mean_shift", "MeanShift"},
    {"sklearn.cluster._optics", "OPTICS"},
    {"sklearn.cluster._spectral", "SpectralClustering"},
    {"sklearn.compose._column_transformer", "ColumnTransformer"},
    {"sklearn.compose._target", "TransformedTargetRegressor"},
    {"sklearn.covariance._elliptic_envelope", "EllipticEnvelope"},
    {"sklearn.covariance._empirical_covariance", "EmpiricalCovariance"},
    {"sklearn.covariance._graph_lasso", "GraphicalLasso GraphicalLassoCV"},
    {"sklearn.covariance._robust_covariance", "MinCovDet"},
    {"sklearn.covariance._shrunk_covariance",
     "LedoitWolf OAS ShrunkCovariance"},
    {"sklearn.cross_decomposition._pls",
     "CCA PLSCanonical PLSRegression PLSSVD"},
    {"sklearn.decomposition._dict_learning",
     "DictionaryLearning MiniBatchDictionaryLearning SparseCoder"},
    {"sklearn.decomposition._factor_analysis", "FactorAnalysis"},
    {"sklearn.decomposition._fastica", "FastICA"},
    {"sklearn.decomposition._incremental_pca", "IncrementalPCA"},
    {"sklearn.decomposition._kernel_pca", "KernelPCA"},
    {"sklearn.decomposition._lda", "LatentDirichletAllocation"},
    {"sklearn.decomposition._nmf", "MiniBatchNMF NMF"},
    {"sklearn.decomposition._pca", "PCA"},
    {"sklearn.decomposition._sparse_pca", "MiniBatchSparsePCA SparsePCA"},
    {"sklearn.decomposition._truncated_svd", "TruncatedSVD"},
    {"sklearn.discriminant_analysis",
     "LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis"},
    {"sklearn.dummy", "DummyClassifier DummyRegressor"},
    {"sklearn.ensemble._bagging", "BaggingClassifier BaggingRegressor"},
    {"sklearn.ensemble._forest",
     "ExtraTreesClassifier ExtraTreesRegressor RandomForestClassifier "
     "RandomForestRegressor RandomTreesEmbedding"},
    {"sklearn.ensemble._gb",
     "GradientBoostingClassifier GradientBoostingRegressor"},
    {"sklearn.ensemble._hist_gradient_boosting.binning", "_BinMapper"},
    {"sklearn.ensemble._hist_gradient_boosting.gradient_boosting",
     "HistGradientBoostingClassifier HistGradientBoostingRegressor"},
    {"sklearn.ensemble._iforest", "IsolationForest"},
    {"sklearn.ensemble._stacking", "StackingClassifier StackingRegressor"},
    {"sklearn.ensemble._voting", "VotingClassifier VotingRegressor"},
    {"sklearn.ensemble._weight_boosting",
     "AdaBoostClassifier AdaBoostRegressor"},
    {"sklearn.feature_extraction._dict_vectorizer", "DictVectorizer"},
    {"sklearn.feature_extraction._hash", "FeatureHasher"},
    {"sklearn.feature_extraction.image", "PatchExtractor"},
    {"sklearn.feature_extraction.text",
     "CountVectorizer HashingVectorizer TfidfTransformer TfidfVectorizer"},
    {"sklearn.feature_selection._from_model", "SelectFromModel"},
    {"sklearn.feature_selection._rfe", "RFE RFECV"},
    {"sklearn.feature_selection._sequential", "SequentialFeatureSelector"},
    {"sklearn.feature_selection._univariate_selection",
     "GenericUnivariateSelect SelectFdr SelectFpr SelectFwe SelectKBest "
     "SelectPercentile"},
    {"sklearn.feature_selection._variance_threshold", "VarianceThreshold"},
    {"sklearn.frozen._frozen", "FrozenEstimator"},
    {"sklearn.gaussian_process._gpc", "GaussianProcessClassifier"},
    {"sklearn.gaussian_process._gpr", "GaussianProcessRegressor"},
    {"sklearn.impute._base", "MissingIndicator SimpleImputer"},
    {"sklearn.impute._knn", "KNNImputer"},
    {"sklearn.isotonic", "IsotonicRegression"},
    {"sklearn.kernel_approximation",
     "AdditiveChi2Sampler Nystroem PolynomialCountSketch RBFSampler "
     "SkewedChi2Sampler"},
    {"sklearn.kernel_ridge", "KernelRidge"},
    {"sklearn.linear_model._base", "LinearRegression"},
    {"sklearn.linear_model._bayes", "ARDRegression BayesianRidge"},
    {"sklearn.linear_model._coordinate_descent",
     "ElasticNet ElasticNetCV Lasso LassoCV MultiTaskElasticNet "
     "MultiTaskElasticNetCV MultiTaskLasso MultiTaskLassoCV"},
    {"sklearn.linear_model._glm.glm",
     "GammaRegressor PoissonRegressor TweedieRegressor"},
    {"sklearn.linear_model._huber", "HuberRegressor"},
    {"sklearn.linear_model._least_angle",
     "Lars LarsCV LassoLars LassoLarsCV LassoLarsIC"},
    {"sklearn.linear_model._logistic",
     "LogisticRegression LogisticRegressionCV"},
    {"sklearn.linear_model._omp",
     "OrthogonalMatchingPursuit OrthogonalMatchingPursuitCV"},
    {"sklearn.linear_model._passive_aggressive",
     "PassiveAggressiveClassifier PassiveAggressiveRegressor"},
    {"sklearn.linear_model._perceptron", "Perceptron"},
    {"sklearn.linear_model._quantile", "QuantileRegressor"},
    {"sklearn.linear_model._ransac", "RANSACRegressor"},
    {"sklearn.linear_model._ridge",
     "Ridge RidgeCV RidgeClassifier RidgeClassifierCV"},
    {"sklearn.linear_model._sgd_fast",
     "EpsilonInsensitive Hinge Huber Log ModifiedHuber "
     "SquaredEpsilonInsensitive SquaredHinge SquaredLoss"},
    {"sklearn.linear_model._stochastic_gradient",
     "SGDClassifier SGDOneClassSVM SGDRegressor"},
    {"sklearn.linear_model._theil_sen", "TheilSenRegressor"},
    {"sklearn.manifold._classical_mds", "ClassicalMDS"},
    {"sklearn.manifold._isomap", "Isomap"},
    {"sklearn.manifold._locally_linear", "LocallyLinearEmbedding"},
    {"sklearn.manifold._mds", "MDS"},
    {"sklearn.manifold._spectral_embedding", "SpectralEmbedding"},
    {"sklearn.manifold._t_sne", "TSNE"},
    {"sklearn.mixture._bayesian_mixture", "BayesianGaussianMixture"},
    {"sklearn.mixture._gaussian_mixture", "GaussianMixture"},
    {"sklearn.model_selection._classification_threshold",
     "FixedThresholdClassifier TunedThresholdClassifierCV"},
    {"sklearn.model_selection._search", "GridSearchCV RandomizedSearchCV"},
    {"sklearn.multiclass",
     "OneVsOneClassifier OneVsRestClassifier OutputCodeClassifier"},
    {"sklearn.multioutput",
     "ClassifierChain MultiOutputClassifier MultiOutputRegressor "
     "RegressorChain"},
    {"sklearn.naive_bayes",
     "BernoulliNB CategoricalNB ComplementNB GaussianNB MultinomialNB"},
    {"sklearn.neighbors._classification",
     "KNeighborsClassifier RadiusNeighborsClassifier"},
    {"sklearn.neighbors._graph",
     "KNeighborsTransformer RadiusNeighborsTransformer"},
    {"sklearn.neighbors._kde", "KernelDensity"},
    {"sklearn.neighbors._lof", "LocalOutlierFactor"},
    {"sklearn.neighbors._nca", "NeighborhoodComponentsAnalysis"},
    {"sklearn.neighbors._nearest_centroid", "NearestCentroid"},
    {"sklearn.neighbors._regression",
     "KNeighborsRegressor RadiusNeighborsRegressor"},
    {"sklearn.neighbors._unsupervised", "NearestNeighbors"},
    {"sklearn.neural_network._multilayer_perceptron",
     "MLPClassifier MLPRegressor"},
    {"sklearn.neural_network._rbm", "BernoulliRBM"},
    {"sklearn.pipeline", "FeatureUnion Pipeline"},
    {"sklearn.preprocessing._data",
     "Binarizer KernelCenterer MaxAbsScaler MinMaxScaler Normalizer "
     "PowerTransformer QuantileTransformer RobustScaler StandardScaler"},
    {"sklearn.preprocessing._discretization", "KBinsDiscretizer"},
    {"sklearn.preprocessing._encoders", "OneHotEncoder OrdinalEncoder"},
    {"sklearn.preprocessing._function_transformer", "FunctionTransformer"},
    {"sklearn.preprocessing._label",
     "LabelBinarizer LabelEncoder MultiLabelBinarizer"},
    {"sklearn.preprocessing._polynomial",
     "PolynomialFeatures SplineTransformer"},
    {"sklearn.preprocessing._target_encoder", "TargetEncoder"},
    {"sklearn.random_projection",
     "GaussianRandomProjection SparseRandomProjection"},
    {"sklearn.semi_supervised._label_propagation",
     "LabelPropagation LabelSpreading"},
    {"sklearn.semi_supervised._self_training", "SelfTrainingClassifier"},
    {"sklearn.svm._classes",
     "LinearSVC LinearSVR NuSVC NuSVR OneClassSVM SVC SVR"},
    {"sklearn.tree._classes",
     "DecisionTreeClassifier DecisionTreeRegressor ExtraTreeClassifier "
     "ExtraTreeRegressor"},
};

}  // namespace

bool IsEstimator(std::string_view module, std::string_view name) {
  const auto* row = std::ranges::find(kRows, module, &EstimatorRow::module);
  if (row == std::end(kRows) || name.empty()) return false;
  for (std::string_view rest = row->names; !rest.empty();) {
    const size_t end = std::min(rest.find(' '), rest.size());
    if (rest.substr(0, end) == name) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

}  // namespace haulway::scan
